"""T(N, L): what a packed forward of N tokens at context L costs on the machine at hand, as a measured table.

Keeps the steps of the measured curve: N is rounded up to the next measured tier, and no step is smoothed over. What a
context costs goes by how many requests have one, see `requests`. Beside it stands what steps take on top. Stored in
profiles; economy.py reads it. Does not know how to measure, nor whether the machine is still the one measured.
"""

import math
from bisect import bisect_left
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from echo_sched.errors import ProfileError
from echo_sched.scheduler.fields import Fields, is_number
from echo_sched.tree import FloatArray

KEYS = ("num_tokens", "context", "seconds", "draft_level_seconds", "machine")
OPTIONAL_KEYS = ("requests", "overhead")
ROWS_PER_REQUEST = 4  # of a table that does not say: how measurements spread their rows, a root and three nodes each


@dataclass(frozen=True)
class Overhead:
    """Seconds of a step beyond its forward and its drafting: scheduling, acceptance, commits, text, counting."""

    step: float
    request: float  # per decoding request
    node: float  # per verified node
    level: float  # per draft level

    def __post_init__(self) -> None:
        if not all(math.isfinite(seconds) and seconds >= 0 for seconds in asdict(self).values()):
            raise ProfileError("cost.overhead must be finite and not negative")

    def seconds_for(self, num_requests: int, num_nodes: int, num_levels: int) -> float:
        """Of one step."""
        return self.step + num_requests * self.request + num_nodes * self.node + num_levels * self.level


@dataclass(frozen=True)
class CostTable:
    """Measured seconds. Raises ProfileError, naming the field, for an impossible table."""

    num_tokens: tuple[int, ...]  # [tiers] ascending
    context: tuple[int, ...]  # [lengths] ascending; tokens already in each request's cache
    seconds: tuple[tuple[float, ...], ...]  # [tiers][lengths], each above 0
    draft_level_seconds: float  # one drafter call for one level of all trees
    machine: dict[str, Any]
    # [tiers] requests among which the rows were spread; attention reads every request's context, so that the same rows
    # of more requests cost more. None: ROWS_PER_REQUEST rows each.
    requests: tuple[int, ...] | None = None
    overhead: Overhead | None = None  # None: not measured

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
        if self.requests is not None and (len(self.requests) != len(self.num_tokens) or min(self.requests) < 1):
            raise ProfileError("cost.requests must hold one count of at least 1 per num_tokens")

    def seconds_for(self, num_tokens: int, context: float, num_requests: int | None = None) -> float:
        """Seconds of one forward of `num_tokens` packed tokens when `num_requests` have `context` tokens behind each.

        A step function of num_tokens (next measured tier; beyond the last one, as many forwards of the last tier as it
        takes), linear in context between measured lengths, level below the first and along the last segment beyond the
        last. `num_requests` None: as many as were measured.
        """
        assert num_tokens >= 1 and context >= 0
        num_forwards = -(-num_tokens // self.num_tokens[-1])
        tier = min(bisect_left(self.num_tokens, num_tokens), len(self.num_tokens) - 1)
        if num_requests is not None:
            # as long a context as makes the measured requests have as much behind them, taken together
            context *= num_requests / num_forwards / self._requests(tier)
        return num_forwards * self._at_context(tier, context)

    def curve(self, lowest: int, highest: int, context: float, num_requests: int | None = None) -> FloatArray:
        """`seconds_for` of lowest, lowest + 1, ... highest tokens."""
        num_tokens = np.arange(lowest, highest + 1)
        tier = np.minimum(np.searchsorted(self.num_tokens, num_tokens), len(self.num_tokens) - 1)
        level = tier - (-num_tokens // self.num_tokens[-1])  # neither tier nor number of forwards ever falls
        first = np.flatnonzero(np.diff(level, prepend=-1))
        seconds = [self.seconds_for(lowest + int(index), context, num_requests) for index in first]
        return np.repeat(seconds, np.diff(first, append=len(num_tokens)))

    def _requests(self, tier: int) -> int:
        return -(-self.num_tokens[tier] // ROWS_PER_REQUEST) if self.requests is None else self.requests[tier]

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
            **({} if self.requests is None else {"requests": list(self.requests)}),
            **({} if self.overhead is None else {"overhead": asdict(self.overhead)}),
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
            requests=_integers(fields, "requests") if fields.has("requests") else None,
            overhead=_overhead(fields) if fields.has("overhead") else None,
        )


def _overhead(fields: Fields) -> Overhead:
    names = tuple(Overhead.__dataclass_fields__)
    row = fields.object("overhead", names)
    return Overhead(**{name: row.number(name) for name in names})


def _integers(fields: Fields, key: str) -> tuple[int, ...]:
    values = fields.list_of(key)
    if not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        raise fields.error(key, "must be a list of integers")
    return tuple(values)


def _numbers(fields: Fields, row: list[Any]) -> tuple[float, ...]:
    if not all(is_number(value) for value in row):
        raise fields.error("seconds", "must hold finite numbers only")
    return tuple(float(value) for value in row)
