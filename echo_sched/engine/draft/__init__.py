"""Drafters by name."""

from echo_sched.engine.draft.ngram import NGramDrafter
from echo_sched.engine.draft.protocol import Drafter
from echo_sched.errors import ConfigError

__all__ = ["Drafter", "make_drafter"]


def make_drafter(name: str, draft_model: str | None) -> Drafter:
    """A fresh drafter. Raises ConfigError for an unknown name or weights it has no use for."""
    if name != NGramDrafter.name:
        raise ConfigError(f"unknown drafter {name!r}; known: {NGramDrafter.name}")
    if draft_model is not None:
        raise ConfigError("the ngram drafter has no weights; leave --draft-model out")
    return NGramDrafter()
