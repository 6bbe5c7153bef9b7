"""Drafters by name: one of those below, or several joined with `+`, which are merged."""

from pathlib import Path

from echo_sched.engine.draft.eagle3.drafter import Eagle3Drafter
from echo_sched.engine.draft.eagle3.layouts import read_head_config
from echo_sched.engine.draft.eagle3.opening import open_eagle3
from echo_sched.engine.draft.merge import MergeDrafter
from echo_sched.engine.draft.ngram import NGramDrafter
from echo_sched.engine.draft.protocol import Drafter
from echo_sched.engine.forward import Target
from echo_sched.errors import ConfigError, ModelError
from echo_sched.heads import shipped_head

__all__ = ["Drafter", "check_drafter", "make_drafter"]

KNOWN = (NGramDrafter.name, Eagle3Drafter.name)


def check_drafter(name: str, draft_model: str | None, aux_layers: tuple[int, ...] | None) -> None:
    """What can be said before a target is loaded.

    Raises ConfigError for an unknown name or settings it has no use for, ModelError for a folder without a head.
    """
    parts, heads = name.split("+"), _words(draft_model)
    num_heads = parts.count(Eagle3Drafter.name)
    for part in parts:
        if part not in KNOWN:
            raise ConfigError(f"--drafter {name}: unknown drafter {part!r}; known: {', '.join(KNOWN)}")
    if not num_heads and (heads or aux_layers is not None):
        raise ConfigError(f"the {name} drafter has no weights; leave --draft-model and --draft-aux-layers out")
    if num_heads and not heads:
        raise ConfigError(f"--drafter {name} needs --draft-model, {_wanted(num_heads)}")
    if len(heads) != num_heads:
        raise ConfigError(f"--drafter {name} needs in --draft-model {_wanted(num_heads)}; {len(heads)} named")
    if len(set(map(_folder, heads))) < len(heads):
        raise ConfigError(f"--draft-model names a head twice, which proposes nothing new: {draft_model}")
    if aux_layers is not None and num_heads != 1:
        raise ConfigError(f"--draft-aux-layers is for one eagle3; --drafter {name} has {num_heads}")
    for head in heads:
        read_head_config(_folder(head))


def make_drafter(
    name: str, draft_model: str | None, target: Target, *, aux_layers: tuple[int, ...] | None = None
) -> Drafter:
    """A fresh drafter for the target. Raises ConfigError, ModelError."""
    check_drafter(name, draft_model, aux_layers)
    heads = iter(_words(draft_model))
    parts: list[Drafter] = [
        NGramDrafter() if part == NGramDrafter.name else _open_head(next(heads), target, aux_layers)
        for part in name.split("+")
    ]
    return parts[0] if len(parts) == 1 else MergeDrafter(parts)


def _open_head(head: str, target: Target, aux_layers: tuple[int, ...] | None) -> Drafter:
    try:
        return open_eagle3(_folder(head), target, aux_layers=aux_layers)
    except ModelError as error:
        if shipped_head(head) is None:
            raise
        raise ModelError(f"{error}; to draft without the head that ships for {head}, pass --drafter ngram") from error


def _words(draft_model: str | None) -> list[str]:
    """The heads that --draft-model names: folders, or aliases of models that a head ships for."""
    return [] if draft_model is None else draft_model.split(",")


def _folder(head: str) -> Path:
    return shipped_head(head) or Path(head).expanduser()


def _wanted(num_heads: int) -> str:
    if num_heads == 1:
        return "the folder of a head made for this target"
    return f"the folders of {num_heads} heads made for this target, joined with commas"
