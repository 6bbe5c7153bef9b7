"""T(N, L): what a packed forward of N tokens at context L costs on the machine at hand, as a measured table.

Keeps the steps of the measured curve: N is rounded up to the next measured tier, and no step is smoothed over. Stored
in profiles; economy.py reads it. Does not know how to measure, nor whether the machine is still the one measured.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from echo_sched.errors import ProfileError
from echo_sched.scheduler.fields import Fields, is_number
from echo_sched.tree import FloatArray

KEYS = ("num_tokens", "context", "seconds", "draft_level_seconds", "machine")


@dataclass(frozen=True)
class CostTable:
    """Measured seconds. Raises ProfileError, naming the field, for an impossible table."""

    num_tokens: tuple[int, ...]  # [tiers] ascending
    context: tuple[int, ...]  # [lengths] ascending; tokens already in each request's cache
    seconds: tuple[tuple[float, ...], ...]  # [tiers][lengths], each above 0
    draft_level_seconds: float  # one drafter call for one level of all trees
    machine: dict[str, Any]

    def __post_init__(self) -> None:
        for name, values, minimum in (("num_tokens", self.num_tokens, 1), ("context", self.context, 0)):
            if not values or values[0] < minimum or any(low >= high for low, high in pairwise(values)):
                raise ProfileError(f"cost.{name} must ascend from at least {minimum}, got {list(values)}")
        shape = [len(row) for row in self.seconds]
        if shape != [len(self.context)] * len(self.num_tokens):
            raise ProfileError("cost.seconds must hold one row per num_tokens and one column per context")
        if not all(math.isfinite(second) and second > 0 for row in self.seconds for second in row):
            raise ProfileError("cost.seconds must be finite and above 0")
        if not (math.isfinite(self.draft_level_seconds) and self.draft_level_seconds >= 0):
            raise ProfileError("cost.draft_level_seconds must be finite and not negative")

    def seconds_for(self, num_tokens: int, context: float) -> float:
        """Seconds of one forward of `num_tokens` packed tokens when requests have `context` tokens behind them.

        A step function of num_tokens (next measured tier; beyond the last one, as many forwards of the last tier as it
        takes), linear in context between measured lengths, level below the first and along the last segment beyond the
        last.
        """
        assert num_tokens >= 1 and context >= 0
        largest = self.num_tokens[-1]
        if num_tokens > largest:
            return math.ceil(num_tokens / largest) * self._at_context(len(self.num_tokens) - 1, context)
        return self._at_context(bisect_left(self.num_tokens, num_tokens), context)

    def curve(self, lowest: int, highest: int, context: float) -> FloatArray:
        """`seconds_for` of lowest, lowest + 1, ... highest tokens."""
        at_tier = np.array([self._at_context(tier, context) for tier in range(len(self.num_tokens))])
        num_tokens, largest = np.arange(lowest, highest + 1), self.num_tokens[-1]
        tier = np.minimum(np.searchsorted(self.num_tokens, num_tokens), len(self.num_tokens) - 1)
        seconds: FloatArray = at_tier[tier] * np.maximum(1, -(-num_tokens // largest))
        return seconds

    def _at_context(self, tier: int, context: float) -> float:
        row = self.seconds[tier]
        if len(row) == 1 or context <= self.context[0]:
            return row[0]
        right = min(bisect_left(self.context, context), len(row) - 1)
        low, high = self.context[right - 1], self.context[right]
        share = (context - low) / (high - low)
        seconds = row[right - 1] + share * (row[right] - row[right - 1])
        # noise can make the last segment fall; a longer context is never cheaper than the longest measured one
        return max(seconds, row[-1]) if context > self.context[-1] else seconds

    def to_json(self) -> dict[str, Any]:
        """JSON-able; `from_json` reads it back unchanged."""
        return {
            "num_tokens": list(self.num_tokens),
            "context": list(self.context),
            "seconds": [list(row) for row in self.seconds],
            "draft_level_seconds": self.draft_level_seconds,
            "machine": self.machine,
        }

    @staticmethod
    def from_json(fields: Fields) -> "CostTable":
        """Read a profile's `cost` object. Raises ProfileError naming the key."""
        rows = fields.list_of("seconds")
        if not all(isinstance(row, list) for row in rows):
            raise fields.error("seconds", "must be a list of lists")
        return CostTable(
            num_tokens=_integers(fields, "num_tokens"),
            context=_integers(fields, "context"),
            seconds=tuple(_numbers(fields, row) for row in rows),
            draft_level_seconds=fields.number("draft_level_seconds"),
            machine=fields.free_object("machine"),
        )


def _integers(fields: Fields, key: str) -> tuple[int, ...]:
    values = fields.list_of(key)
    if not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        raise fields.error(key, "must be a list of integers")
    return tuple(values)


def _numbers(fields: Fields, row: list[Any]) -> tuple[float, ...]:
    if not all(is_number(value) for value in row):
        raise fields.error("seconds", "must hold finite numbers only")
    return tuple(float(value) for value in row)
