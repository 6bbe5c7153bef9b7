"""Candidates that a step has seen, granted or not, and the choice of the best among them.

Knows candidates and their worth; not how trees grew.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from echo_sched.scheduler.order import by_worth
from echo_sched.tree import BoolArray, FloatArray, IntArray, Offers

NOT_GRANTED = -2  # no node number; -1 is the root


class Seen(NamedTuple):
    """Arrays [C]; granted candidates have their node numbers. By depth, and at each depth best first (order.py)."""

    offers: Offers
    node: IntArray  # NOT_GRANTED for those that were not
    depth: IntArray
    chance: FloatArray  # of being on the accepted path; never above the parent's
    at_truncation: BoolArray  # the gate truncated the request, or stopped this branch of it, here

    @staticmethod
    def concat(parts: Sequence["Seen"]) -> "Seen":
        if len(parts) == 1:
            return parts[0]
        none, no_numbers, no_flags = np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.bool_)
        return Seen(
            Offers.concat([part.offers for part in parts]),
            np.concatenate([none, *(part.node for part in parts)]),
            np.concatenate([none, *(part.depth for part in parts)]),
            np.concatenate([no_numbers, *(part.chance for part in parts)]),
            np.concatenate([no_flags, *(part.at_truncation for part in parts)]),
        )

    def take(self, rows: IntArray | BoolArray) -> "Seen":
        offers, node, depth, chance, at_truncation = self
        return Seen(offers.take(rows), node[rows], depth[rows], chance[rows], at_truncation[rows])

    def best_first(self, weight: FloatArray) -> "Seen":
        """By chance times the request's weight [B], and then likewise by path probability, since chances may tie where
        path probabilities do not; of equals the shallower, and then as at one depth: they are in that order already.

        Neither ever rises from parent to child, so that nothing comes before its parent.
        """
        request = self.offers.request
        path = self.offers.path_logp + np.log(weight)[request]
        return self.take(by_worth(self.chance * weight[request], path))
