"""How often the traffic at hand agrees with its drafts: calibrated chances, corrected by what was accepted.

    log odds(request, depth, S) = log odds of the curve(depth, S) + shift(temperature bucket, depth)

A curve is fitted on some text, greedily as a rule. Other text agrees less or more, sampling agrees less, and nodes that
are bought for their chance are those whose chance is overestimated. Each tree that was verified says of every depth
with nodes whether the accepted path got there, y; what its nodes promise together, p, is taken for one logistic chance,
and `shift` follows by Newton's steps,

    shift += sum(y - p) / information        information = min(information + sum(p (1 - p)), MOST)

so that the curve's word weighs FIRST, and what is long ago is forgotten. Where requests have no nodes the shift fades:
what nobody buys would never be tried again. Decides nothing, knows no clock.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from echo_sched.scheduler.acceptance import Acceptance
from echo_sched.scheduler.order import mask
from echo_sched.tree import BoolArray, FloatArray, IntArray

TEMPERATURES = (0.0, 0.5, 0.85)  # upper ends of the buckets but the last; greedy requests have one of their own
FIRST = 8.0  # information in the curve: 32 nodes at even odds
MOST = 100.0  # of about so much information is anything remembered
FADING = 0.002  # share of a shift that a step takes away whose requests of that kind have no nodes there
LIMIT = 4.0  # log odds


class LiveAcceptance:
    """The shifts of one engine's traffic."""

    def __init__(self, curves: Acceptance, max_depth: int) -> None:
        self._curves = curves
        self.shift: FloatArray = np.zeros((len(TEMPERATURES) + 1, max_depth))  # [temperature buckets, max_depth]
        self._information = np.full_like(self.shift, FIRST)

    def of(self, temperature: FloatArray | None, num_requests: int) -> Acceptance:
        """The chances of a batch. temperature [B]; None: all greedy."""
        return replace(self._curves, log_odds=self.shift[_buckets(temperature, num_requests)])

    def observe(self, temperature: FloatArray | None, expected: FloatArray, accepted: Sequence[int]) -> None:
        """What became of verified trees. accepted [B]: accepted nodes per request.

        expected [B, D]: their chances at each depth, summed, since siblings exclude each other; 0 where there are none.
        """
        bucket = _buckets(temperature, len(expected))
        request, depth = np.nonzero(expected)
        chance = np.minimum(expected[request, depth], 1.0)
        reached: BoolArray = np.asarray(accepted, np.int64)[request] > depth
        cell = bucket[request] * self.shift.shape[1] + depth
        gradient, information = self._summed(cell, reached - chance), self._summed(cell, chance * (1.0 - chance))
        # A large batch says more at once than is remembered.
        self._information = np.maximum(np.minimum(self._information + information, MOST), information)
        moved = np.clip(self.shift + gradient / self._information, -LIMIT, LIMIT)
        untried = (information == 0.0) & mask(len(self.shift), bucket)[:, None]
        self.shift = np.where(untried, (1.0 - FADING) * self.shift, moved)

    def _summed(self, cell: IntArray, values: FloatArray) -> FloatArray:
        """Like `shift`: values [n] of cells, which are numbered row by row."""
        return np.bincount(cell, values, self.shift.size).astype(np.float64).reshape(self.shift.shape)


def _buckets(temperature: FloatArray | None, num_requests: int) -> IntArray:
    """[B]"""
    if temperature is None:
        return np.zeros(num_requests, np.int64)
    return np.searchsorted(TEMPERATURES, temperature)
