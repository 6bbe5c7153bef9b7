"""The walk that decides which draft nodes are kept: at each node the target's own next token is drawn, and a child that
carries it is stepped onto; else the token is the bonus and the walk ends (design: Exactness).

The drafter's probabilities play no part, so the emitted tokens are those of plain decoding whatever was drafted. All
requests walk together, one level at a time, so that sampling is batched.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from echo_sched.engine.processors import History, process
from echo_sched.tree import ROOT, DraftTree
from echo_sched.types import SamplingParams


class Walk(NamedTuple):
    """One request's tree and where its logits are: row `first_row` for the root, `first_row + 1 + i` for node i."""

    tree: DraftTree
    params: SamplingParams
    position: int  # absolute position of the token that follows the root
    first_row: int
    history: History | None = None  # the tokens before `position`, where processors need them; the walk adds its own


class Sampler(Protocol):
    def __call__(self, logits: Tensor, params: Sequence[SamplingParams], positions: Sequence[int]) -> list[int]: ...


def accept(
    logits: Tensor,
    walks: Sequence[Walk],
    sample: Sampler,
    emit: Callable[[int, int], bool],
    fail: Callable[[int], None],
) -> list[list[int]]:
    """Walk all trees. logits: [R, vocab].

    `emit(walk index, token)` takes every token in order and says whether the request ends with it; nothing is emitted
    after that. `fail(walk index)` is called where no token can be drawn because the logits are not finite. Returns the
    accepted nodes of each walk, top down.
    """
    accepted: list[list[int]] = [[] for _ in walks]
    active = [(index, ROOT) for index in range(len(walks))]
    while active:
        tokens = _draw(logits, [_Draw(walks[index], node, len(accepted[index])) for index, node in active], sample)
        deeper = []
        for (index, node), token in zip(active, tokens, strict=True):
            if token is None:
                fail(index)
                continue
            walk = walks[index]
            child = walk.tree.child(node, token)
            if child is not None:
                accepted[index].append(child)
            if walk.history is not None:
                walk.history.push(token)
            if not emit(index, token) and child is not None:
                deeper.append((index, child))
        active = deeper
    return accepted


class _Draw(NamedTuple):
    """The token that follows `node`, which is `depth` levels below the root."""

    walk: Walk
    node: int
    depth: int

    @property
    def history(self) -> History | None:
        """Of a token whose logits are processed."""
        history = self.walk.history
        return history if history is not None and history.active else None


def _draw(logits: Tensor, draws: Sequence[_Draw], sample: Sampler) -> list[int | None]:
    """One level's tokens; None where none can be drawn. Rows without processors are drawn as the model gave them."""
    tokens: list[int | None] = [None] * len(draws)
    for is_processed in (False, True):
        places = [place for place, draw in enumerate(draws) if (draw.history is not None) == is_processed]
        if not places:
            continue
        rows, drawable = _rows(logits, [draws[place] for place in places])
        if not all(drawable):
            rows = rows[torch.tensor(drawable, device=rows.device)]
            places = [place for place, good in zip(places, drawable, strict=True) if good]
        walks = [draws[place].walk for place in places]
        positions = [draws[place].walk.position + draws[place].depth for place in places]
        for place, token in zip(places, sample(rows, [walk.params for walk in walks], positions), strict=True):
            tokens[place] = token
    return tokens


def _rows(logits: Tensor, draws: Sequence[_Draw]) -> tuple[Tensor, list[bool]]:
    """What each draw chooses from, and whether that is possible; either all draws have a history or none has."""
    wanted = [draw.walk.first_row + 1 + draw.node for draw in draws]
    rows = logits[torch.tensor(wanted, device=logits.device)]
    # A maximum that is finite, with no NaN beside it, is all that drawing needs; -inf rules a token out.
    drawable = torch.isfinite(rows.amax(-1))
    histories = [draw.history for draw in draws if draw.history is not None]
    if histories:
        rows = process(rows, histories)
        drawable &= torch.isfinite(rows.amax(-1))
    return rows, drawable.tolist()
