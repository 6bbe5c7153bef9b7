"""Reranking: of all candidates that a step has seen, drafted further or not, keep the best (EAGLE-2, EMNLP 2024).

Knows candidates, shares and K_max; not how trees grew.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from echo_sched.tree import BoolArray, IntArray, Offers

NOT_GRANTED = -2  # no node number; -1 is the root


class Seen(NamedTuple):
    """Candidates of a step, granted ones with their node numbers. Arrays [C]."""

    offers: Offers
    node: IntArray  # NOT_GRANTED for those that were not
    depth: IntArray
    at_truncation: BoolArray  # the gate truncated the request, or stopped this branch of it, here

    @staticmethod
    def concat(parts: Sequence["Seen"]) -> "Seen":
        none = np.zeros(0, np.int64)
        columns = zip(*((none, none, np.zeros(0, np.bool_)), *(part[1:] for part in parts)), strict=True)
        return Seen(Offers.concat([part.offers for part in parts]), *(np.concatenate(column) for column in columns))


def rerank(seen: Seen, shares: IntArray, k_max: int) -> tuple[Offers, list[IntArray]]:
    """Each request's best `shares` [B] candidates, and of those the batch's best K_max.

    Returns those that were not granted yet, best first, and [B] the granted nodes that stay, ascending. S never rises
    from parent to child and the shallower of equals comes first, so that nothing is kept without its parent.
    """
    offers = seen.offers
    order = np.lexsort((offers.parent, offers.token, offers.request, seen.depth, -offers.path_logp))
    kept = order[rank_within(offers.request[order]) < shares[offers.request[order]]][:k_max]
    granted = kept[seen.node[kept] != NOT_GRANTED]
    nodes = [np.sort(seen.node[granted[offers.request[granted] == request]]) for request in range(len(shares))]
    return offers.take(kept[seen.node[kept] == NOT_GRANTED]), nodes


def rank_within(group: IntArray) -> IntArray:
    """[n] how many earlier entries carry the same number."""
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    place = np.arange(len(group))
    begins = np.ones(len(group), np.bool_)
    begins[1:] = ordered[1:] != ordered[:-1]
    rank = np.empty(len(group), np.int64)
    rank[order] = place - np.maximum.accumulate(np.where(begins, place, 0))
    return rank
