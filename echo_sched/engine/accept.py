"""The walk that decides which draft nodes are kept: at each node the target's own next token is drawn, and a child that
carries it is stepped onto; else the token is the bonus and the walk ends (design: Exactness).

The drafter's probabilities play no part, so the emitted tokens are those of plain decoding whatever was drafted. All
requests walk together, one level at a time, so that sampling is batched.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from echo_sched.tree import ROOT, DraftTree
from echo_sched.types import SamplingParams


class Walk(NamedTuple):
    """One request's tree and where its logits are: row `first_row` for the root, `first_row + 1 + i` for node i."""

    tree: DraftTree
    params: SamplingParams
    position: int  # absolute position of the token that follows the root
    first_row: int


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
        wanted = [walks[index].first_row + 1 + node for index, node in active]
        rows = logits[torch.tensor(wanted, device=logits.device)]
        # A maximum that is finite, with no NaN beside it, is all that drawing needs; -inf rules a token out.
        drawable = torch.isfinite(rows.amax(-1)).tolist()
        for (index, _), good in zip(active, drawable, strict=True):
            if not good:
                fail(index)
        active = [pair for pair, good in zip(active, drawable, strict=True) if good]
        if not all(drawable):
            rows = rows[torch.tensor(drawable, device=rows.device)]
        tokens = sample(
            rows,
            [walks[index].params for index, _ in active],
            [walks[index].position + len(accepted[index]) for index, _ in active],
        )
        deeper = []
        for (index, node), token in zip(active, tokens, strict=True):
            child = walks[index].tree.child(node, token)
            if child is not None:
                accepted[index].append(child)
            if not emit(index, token) and child is not None:
                deeper.append((index, child))
        active = deeper
    return accepted
