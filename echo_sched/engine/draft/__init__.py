"""Drafters by name."""

from echo_sched.engine.draft.eagle3.drafter import Eagle3Drafter
from echo_sched.engine.draft.eagle3.layouts import read_head_config
from echo_sched.engine.draft.eagle3.opening import open_eagle3
from echo_sched.engine.draft.ngram import NGramDrafter
from echo_sched.engine.draft.protocol import Drafter
from echo_sched.engine.forward import Target
from echo_sched.errors import ConfigError

__all__ = ["Drafter", "check_drafter", "make_drafter"]


def check_drafter(name: str, draft_model: str | None, aux_layers: tuple[int, ...] | None) -> None:
    """What can be said before a target is loaded.

    Raises ConfigError for an unknown name or settings it has no use for, ModelError for a folder without a head.
    """
    if name == NGramDrafter.name:
        if draft_model is not None or aux_layers is not None:
            raise ConfigError("the ngram drafter has no weights; leave --draft-model and --draft-aux-layers out")
    elif name == Eagle3Drafter.name:
        if draft_model is None:
            raise ConfigError("the eagle3 drafter needs --draft-model, the folder of a head made for this target")
        read_head_config(draft_model)
    else:
        raise ConfigError(f"unknown drafter {name!r}; known: {NGramDrafter.name}, {Eagle3Drafter.name}")


def make_drafter(
    name: str, draft_model: str | None, target: Target, *, aux_layers: tuple[int, ...] | None = None
) -> Drafter:
    """A fresh drafter for the target. Raises ConfigError, ModelError."""
    check_drafter(name, draft_model, aux_layers)
    if draft_model is None:
        return NGramDrafter()
    return open_eagle3(draft_model, target, aux_layers=aux_layers)
