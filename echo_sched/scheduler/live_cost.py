"""What forwards and drafting really take, learned from the steps that ran: the measured table, corrected.

    seconds(N, C) = table(N, C) * exp(common + own(N))        drafting = table's * exp(common + dearer)

A table is a few repeats on an idle machine; steps of a busy one take longer, and not all alike. `common` follows what
happens to every step, `own` what is left at each measured number of rows, linear between them. What is left of drafting
is one factor, `dearer`, for the batch as it is of late; it fades where nobody drafts. All learn quickly what they have
rarely seen. Whether drafts pay hangs on ratios between row counts, so those that are not in use have to be tried now
and then: economy.py sees to that. Knows no load and no policy.
"""

import math
from collections.abc import Sequence

import numpy as np

from echo_sched.scheduler.cost import CostTable, DraftingCost
from echo_sched.tree import FloatArray

COMMON_MEMORY, OWN_MEMORY = 0.05, 0.02  # weight of the latest step, at least
DRAFTING_MEMORY = 0.05  # the same of drafting's factor ...
FADING = 0.002  # ... of which every step takes away so much
TABLE_STEPS = 4  # the table's word at a number of rows weighs as much as so many steps there
LIMIT = math.log(1.15)  # one step says no more than this where many have run: anything may interrupt it
NEW = 16  # steps near a number of rows until its limit is about LIMIT


class LiveCost:
    """Reads as the table does."""

    def __init__(self, table: CostTable) -> None:
        self._table = table
        self._common = 0.0
        self._own = np.zeros(len(table.num_tokens))
        self._num_steps = 0
        self._num_seen = np.zeros(len(table.num_tokens))  # steps near each measured number of rows
        self._known: set[int] = set()  # row counts that have run
        self._dearer = 0.0
        self._num_drafted = 0
        self._known_drafting: set[int] = set()  # batches that have drafted

    @property
    def drafting(self) -> DraftingCost:
        factor = self._common + self._dearer
        return self._table.drafting.times(math.exp(factor)) if factor else self._table.drafting

    def seconds_for(self, num_tokens: int, cached_tokens: float) -> float:
        """Seconds of one forward of `num_tokens` packed tokens."""
        return float(self.curve(num_tokens, num_tokens, cached_tokens)[0])

    def curve(self, lowest: int, highest: int, cached_tokens: float) -> FloatArray:
        """[highest - lowest + 1] `seconds_for` of lowest, lowest + 1, ... highest tokens, never falling."""
        measured = self._table.curve(lowest, highest, cached_tokens)
        if not self._num_steps:
            return measured
        own = np.interp(np.arange(lowest, highest + 1), self._table.num_tokens, self._own)
        corrected: FloatArray = np.maximum.accumulate(measured * np.exp(self._common + own))
        return corrected

    def observe(self, num_tokens: int, cached_tokens: float, seconds: float) -> float:
        """A forward of so many packed tokens took so long. The first of its size may have compiled kernels: ignored.

        Returns the logarithm of seconds taken over seconds expected, 0 for what is ignored.
        """
        assert seconds > 0
        if num_tokens not in self._known:
            self._known.add(num_tokens)
            return 0.0
        near = self._near(num_tokens)
        expected = math.log(self._table.seconds_for(num_tokens, cached_tokens)) + self._common + float(near @ self._own)
        limit = LIMIT * (1 + NEW / (1 + float(near @ self._num_seen)))
        error = math.log(seconds) - expected
        surprise = min(max(error, -limit), limit)
        common = max(COMMON_MEMORY, 1 / (self._num_steps + 1))
        own = np.maximum(OWN_MEMORY, 1 / (self._num_seen + TABLE_STEPS)) * near
        self._common += common * surprise
        self._own += (1 - common) * surprise * own
        self._dearer *= 1 - FADING
        self._num_steps += 1
        self._num_seen += near
        return error

    def observe_drafting(self, num_requests: int, frontiers: Sequence[int], num_fed: int, seconds: float) -> None:
        """Drafting as in DraftingCost.seconds took so long. The first of a batch's size may have compiled kernels:
        ignored.
        """
        expected = self._table.drafting.seconds(num_requests, frontiers, num_fed)
        if num_requests not in self._known_drafting or min(expected, seconds) <= 0.0:
            self._known_drafting.add(num_requests)
            return
        limit = LIMIT * (1 + NEW / (1 + self._num_drafted))
        error = math.log(seconds / expected) - self._common - self._dearer
        self._dearer += max(DRAFTING_MEMORY, 1 / (self._num_drafted + 1)) * min(max(error, -limit), limit)
        self._num_drafted += 1

    def _near(self, num_tokens: int) -> FloatArray:
        """[tiers] how much each measured number of rows has to do with this one; they add up to 1."""
        tiers = np.arange(len(self._own))
        place = float(np.interp(num_tokens, self._table.num_tokens, tiers))
        near: FloatArray = np.maximum(0.0, 1.0 - np.abs(tiers - place))
        return near
