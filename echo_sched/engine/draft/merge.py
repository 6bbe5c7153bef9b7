"""Several drafters as one: what they propose is merged by common prefix, level by level (after SpecInfer, ASPLOS 2024).

    every drafter offers children of every frontier node; the same child twice is one candidate; the best survive

So each also goes on from nodes that only another proposed. Knows no drafter by name, and nothing of budget or gates.
"""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from echo_sched.engine.draft.protocol import Drafter
from echo_sched.tree import BoolArray, DraftTree, Frontier, IntArray, Offers
from echo_sched.types import Request


class MergeDrafter:
    """The Drafter of several. A part that offers nothing for a node leaves it to the others."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        assert drafters
        self.drafters = tuple(drafters)
        self.name = "+".join(drafter.name for drafter in drafters)
        # The name says which parts have weights, so theirs alone, in order, identify the whole.
        weights = [drafter.fingerprint for drafter in drafters if drafter.fingerprint is not None]
        self.fingerprint: str | None = "+".join(weights) or None
        self.aux_layers = tuple(sorted({layer for drafter in drafters for layer in drafter.aux_layers}))

    def begin(self, request: Request) -> None:
        for drafter in self.drafters:
            drafter.begin(request)

    def observe(self, committed: Sequence[tuple[Request, int]], features: Tensor) -> None:
        """Hand each part the hidden states that it asked for, in its own order. features: [rows, layers * hidden]."""
        states = features.unflatten(1, (len(self.aux_layers), -1))
        for drafter in self.drafters:
            if drafter.aux_layers:
                places = [self.aux_layers.index(layer) for layer in drafter.aux_layers]
                drafter.observe(committed, states[:, places].flatten(1))

    def extend(self, requests: Sequence[Request]) -> None:
        for drafter in self.drafters:
            drafter.extend(requests)

    def expand(
        self, requests: Sequence[Request], trees: Sequence[DraftTree], frontier: Frontier, max_children: int
    ) -> Offers:
        parts = [drafter.expand(requests, trees, frontier, max_children) for drafter in self.drafters]
        return merge_offers(parts, max_children)

    def release(self, request: Request) -> None:
        for drafter in self.drafters:
            drafter.release(request)


def merge_offers(parts: Sequence[Offers], max_children: int) -> Offers:
    """The best `max_children` candidates of each node, best first (ties: lower token id).

    One that several parts offer has the best `path_logp` that any of them gave it.
    """
    offers = Offers.concat(parts)
    offers = offers.take(np.lexsort((-offers.path_logp, offers.token, offers.parent, offers.request)))
    offers = offers.take(_begins(offers.request, offers.parent, offers.token))
    offers = offers.take(np.lexsort((offers.token, -offers.path_logp, offers.parent, offers.request)))
    place = np.arange(offers.size)
    first = np.maximum.accumulate(np.where(_begins(offers.request, offers.parent), place, 0))  # of the same node
    return offers.take(place - first < max_children)


def _begins(*columns: IntArray) -> BoolArray:
    """[n] rows that differ from the one above in any column; the first has none above."""
    begins = np.ones(len(columns[0]), np.bool_)
    begins[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return begins
