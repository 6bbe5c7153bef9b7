"""Drafters by name: one of those below, or several joined with `+`, which are merged."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from echo_sched.engine.draft.eagle3.drafter import Eagle3Drafter
from echo_sched.engine.draft.eagle3.layouts import read_head_config
from echo_sched.engine.draft.eagle3.opening import open_eagle3
from echo_sched.engine.draft.lm.drafter import LMDrafter
from echo_sched.engine.draft.lm.opening import check_draft_model, open_lm
from echo_sched.engine.draft.merge import MergeDrafter
from echo_sched.engine.draft.ngram import NGramDrafter
from echo_sched.engine.draft.protocol import Drafter
from echo_sched.engine.forward import Target
from echo_sched.errors import ConfigError, ModelError
from echo_sched.heads import shipped_head

__all__ = ["Drafter", "Part", "check_drafter", "make_drafter"]

KNOWN = (NGramDrafter.name, Eagle3Drafter.name, LMDrafter.name)
# What --draft-model names for each drafter that has weights.
WEIGHTS = {
    Eagle3Drafter.name: "the folder of a head made for this target",
    LMDrafter.name: "a smaller model with the target's tokenizer",
}


class Part(NamedTuple):
    """One of the drafters that a name joins, and its weights: as --draft-model names them, and where they are."""

    name: str
    word: str = ""
    folder: str = ""


def check_drafter(
    name: str, draft_model: str | None, aux_layers: tuple[int, ...] | None, resolve: Callable[[str], str] = str
) -> list[Part]:
    """A drafter's parts, and what can be said before a target is loaded. `resolve`: a model's name -> its folder.

    Raises ConfigError for an unknown name or settings it has no use for, ModelError for a folder without a head or a
    model.
    """
    names, words = name.split("+"), [] if draft_model is None else draft_model.split(",")
    for kind in names:
        if kind not in KNOWN:
            raise ConfigError(f"--drafter {name}: unknown drafter {kind!r}; known: {', '.join(KNOWN)}")
    kinds = [kind for kind in names if kind in WEIGHTS]
    if not kinds and (words or aux_layers is not None):
        raise ConfigError(f"the {name} drafter has no weights; leave --draft-model and --draft-aux-layers out")
    _check_words(name, kinds, words)
    num_heads = names.count(Eagle3Drafter.name)
    if aux_layers is not None and num_heads != 1:
        raise ConfigError(f"--draft-aux-layers is for one eagle3; --drafter {name} has {num_heads or 'none'}")
    rest = iter(words)
    parts = [_located(kind, next(rest), resolve) if kind in WEIGHTS else Part(kind) for kind in names]
    located = [(part.name, part.folder) for part in parts if part.folder]
    if len(set(located)) < len(located):
        raise ConfigError(f"--draft-model names the same weights twice, which proposes nothing new: {draft_model}")
    for part in parts:
        _check_config(part)
    return parts


def make_drafter(
    parts: Sequence[Part], target: Target, *, aux_layers: tuple[int, ...] | None = None, coupled: bool = False
) -> Drafter:
    """A fresh drafter for the target, of the parts that were checked. `coupled`: see children.py.

    Raises ConfigError, ModelError.
    """
    drafters = [_open(part, target, aux_layers, coupled) for part in parts]
    return drafters[0] if len(drafters) == 1 else MergeDrafter(drafters)


def _open(part: Part, target: Target, aux_layers: tuple[int, ...] | None, coupled: bool) -> Drafter:
    if part.name == NGramDrafter.name:
        return NGramDrafter()
    if part.name == LMDrafter.name:
        return open_lm(part.word, part.folder, target, coupled=coupled)
    try:
        return open_eagle3(part.folder, target, aux_layers=aux_layers, coupled=coupled)
    except ModelError as error:
        if shipped_head(part.word) is None:
            raise
        advice = f"to draft without the head that ships for {part.word}, pass --drafter ngram"
        raise ModelError(f"{error}; {advice}") from error


def _located(name: str, word: str, resolve: Callable[[str], str]) -> Part:
    if name == LMDrafter.name:
        return Part(name, word, resolve(word))
    return Part(name, word, str(shipped_head(word) or Path(word).expanduser()))


def _check_config(part: Part) -> None:
    if part.name == LMDrafter.name:
        check_draft_model(part.word, part.folder)
    elif part.name == Eagle3Drafter.name:
        read_head_config(part.folder)


def _check_words(name: str, kinds: Sequence[str], words: Sequence[str]) -> None:
    """--draft-model names weights for every part that has some."""
    wanted = " and ".join(f"{text} for each {kind}" for kind, text in WEIGHTS.items() if kind in kinds)
    wanted = WEIGHTS[kinds[0]] if len(kinds) == 1 else f"{len(kinds)} names joined with commas, in order: {wanted}"
    if kinds and not words:
        raise ConfigError(f"--drafter {name} needs --draft-model, {wanted}")
    if len(words) != len(kinds):
        raise ConfigError(f"--drafter {name} needs in --draft-model {wanted}; {len(words)} named")
