"""What a step costs on the machine at hand, as measured tables: the packed forward, and drafting beside it.

    T(N, C)      one forward of N packed tokens while the requests in it have C tokens in their caches, all together
    level(F)     drafting one level more, below F nodes
    overhead(B)  the host's share of a step without drafts, where it was measured; prices do not need it
    pair         feeding the drafter one committed token
    start(B)     what else a step takes more that drafts for B requests: the first level, calls that take long for few
                 rows too, and the host's work on trees

Between measured numbers everything is linear: rounding up to the next measured one would invent steps (the first node
would cost as much as a dozen). A kernel's own step stays a step where both of its sides were measured. Stored in
profiles; economy.py reads it. Does not know how to measure, nor whether the machine is still the one measured.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from echo_sched.errors import ProfileError
from echo_sched.scheduler.fields import Fields, is_number
from echo_sched.tree import FloatArray, IntArray

KEYS = ("num_tokens", "cached_tokens", "seconds", "drafting", "machine")
OPTIONAL_KEYS = ("overhead",)
DRAFTING_KEYS = ("num_requests", "start_seconds", "num_nodes", "level_seconds", "pair_seconds")


@dataclass(frozen=True)
class DraftingCost:
    """Measured seconds of drafting. Raises ProfileError, naming the field, for an impossible table."""

    num_requests: tuple[int, ...]  # [batches] ascending
    start_seconds: tuple[float, ...]  # [batches] of a step that drafts one level, beyond its forward and feeding
    num_nodes: tuple[int, ...]  # [sizes] ascending
    level_seconds: tuple[float, ...]  # [sizes] of each further level, by how many nodes it is drafted below
    pair_seconds: float  # per committed token that the drafter is fed

    def __post_init__(self) -> None:
        for numbers, name in (("num_requests", "start_seconds"), ("num_nodes", "level_seconds")):
            _check_ascending(f"drafting.{numbers}", getattr(self, numbers), 1)
            values = getattr(self, name)
            if len(values) != len(getattr(self, numbers)):
                raise ProfileError(f"cost.drafting.{name} must hold one number per {numbers}")
            if not all(math.isfinite(value) and value >= 0 for value in values):
                raise ProfileError(f"cost.drafting.{name} must be finite and not negative")
        if not (math.isfinite(self.pair_seconds) and self.pair_seconds >= 0):
            raise ProfileError("cost.drafting.pair_seconds must be finite and not negative")

    @staticmethod
    def constant(level_seconds: float) -> "DraftingCost":
        """A level takes so long whatever its size, and nothing else takes any time."""
        return DraftingCost((1,), (level_seconds,), (1,), (level_seconds,), 0.0)

    def start(self, num_requests: int) -> float:
        """Seconds of a step that drafts one level, beyond its forward and feeding."""
        return float(_read(self.num_requests, self.start_seconds, num_requests))

    def levels(self, num_nodes: Sequence[int] | IntArray) -> FloatArray:
        """[levels] seconds of each further level, by how many nodes it is drafted below."""
        return _read(self.num_nodes, self.level_seconds, np.asarray(num_nodes))

    def seconds(self, num_requests: int, frontiers: Sequence[int], num_fed: int) -> float:
        """Of a step that drafts for so many requests, beside its forward; nothing where it drafts no level.

        frontiers [levels]: how many nodes each level is drafted below, the roots first; num_fed: tokens fed before.
        """
        if not frontiers:
            return 0.0
        levels = float(self.levels(frontiers[1:]).sum())
        return self.start(num_requests) + levels + num_fed * self.pair_seconds

    def times(self, factor: float) -> "DraftingCost":
        """The same, so many times as dear."""
        starts, levels = ([factor * seconds for seconds in part] for part in (self.start_seconds, self.level_seconds))
        return DraftingCost(self.num_requests, tuple(starts), self.num_nodes, tuple(levels), factor * self.pair_seconds)

    def to_json(self) -> dict[str, Any]:
        return {
            "num_requests": list(self.num_requests),
            "start_seconds": list(self.start_seconds),
            "num_nodes": list(self.num_nodes),
            "level_seconds": list(self.level_seconds),
            "pair_seconds": self.pair_seconds,
        }

    @staticmethod
    def from_json(fields: Fields) -> "DraftingCost":
        """Raises ProfileError naming the key."""
        return DraftingCost(
            num_requests=_integers(fields, "num_requests"),
            start_seconds=fields.numbers("start_seconds"),
            num_nodes=_integers(fields, "num_nodes"),
            level_seconds=fields.numbers("level_seconds"),
            pair_seconds=fields.number("pair_seconds"),
        )


@dataclass(frozen=True)
class Overhead:
    """Seconds of a plain step beyond its forward: scheduling, acceptance, commits, text, counting."""

    step: float
    request: float  # per request in the step

    def __post_init__(self) -> None:
        if not all(math.isfinite(seconds) and seconds >= 0 for seconds in asdict(self).values()):
            raise ProfileError("cost.overhead must be finite and not negative")

    def seconds_for(self, num_requests: int) -> float:
        """Of one step."""
        return self.step + num_requests * self.request


@dataclass(frozen=True)
class CostTable:
    """Measured seconds. Raises ProfileError, naming the field, for an impossible table."""

    num_tokens: tuple[int, ...]  # [tiers] ascending
    cached_tokens: tuple[int, ...]  # [loads] ascending; in the caches of all requests of the step together
    seconds: tuple[tuple[float, ...], ...]  # [tiers][loads], each above 0
    drafting: DraftingCost
    machine: dict[str, Any]
    overhead: Overhead | None = None  # None: not measured

    def __post_init__(self) -> None:
        _check_ascending("num_tokens", self.num_tokens, 1)
        _check_ascending("cached_tokens", self.cached_tokens, 0)
        shape = [len(row) for row in self.seconds]
        if shape != [len(self.cached_tokens)] * len(self.num_tokens):
            raise ProfileError("cost.seconds must hold one row per num_tokens and one column per cached_tokens")
        if not all(math.isfinite(second) and second > 0 for row in self.seconds for second in row):
            raise ProfileError("cost.seconds must be finite and above 0")

    def seconds_for(self, num_tokens: int, cached_tokens: float) -> float:
        """Seconds of one forward of `num_tokens` packed tokens, linear between what was measured.

        Level below the first measured number; beyond the last one it goes on as it rose from the first to the last.
        """
        return float(self.curve(num_tokens, num_tokens, cached_tokens)[0])

    def curve(self, lowest: int, highest: int, cached_tokens: float) -> FloatArray:
        """[highest - lowest + 1] `seconds_for` of lowest, lowest + 1, ... highest tokens."""
        assert lowest >= 1 and cached_tokens >= 0
        return _read(self.num_tokens, self._at_load(cached_tokens), np.arange(lowest, highest + 1))

    def _at_load(self, cached_tokens: float) -> FloatArray:
        """[tiers] seconds with so many tokens cached. As `_read` reads each tier, but all at once: every step asks."""
        at, seconds = self.cached_tokens, self._surface
        if len(at) == 1:
            return seconds[:, 0]
        left = min(max(bisect_right(at, cached_tokens) - 1, 0), len(at) - 2)
        share = min(max((cached_tokens - at[left]) / (at[left + 1] - at[left]), 0.0), 1.0)
        read: FloatArray = seconds[:, left] + share * (seconds[:, left + 1] - seconds[:, left])
        if cached_tokens > at[-1]:
            slope = np.maximum(0.0, (seconds[:, -1] - seconds[:, 0]) / (at[-1] - at[0]))
            read = read + slope * (cached_tokens - at[-1])
        return read

    @cached_property
    def _surface(self) -> FloatArray:
        """[tiers, loads]"""
        return np.array(self.seconds, np.float64)

    def to_json(self) -> dict[str, Any]:
        """JSON-able; `from_json` reads it back unchanged."""
        return {
            "num_tokens": list(self.num_tokens),
            "cached_tokens": list(self.cached_tokens),
            "seconds": [list(row) for row in self.seconds],
            "drafting": self.drafting.to_json(),
            "machine": self.machine,
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
            cached_tokens=_integers(fields, "cached_tokens"),
            seconds=tuple(_numbers(fields, row) for row in rows),
            drafting=DraftingCost.from_json(fields.object("drafting", DRAFTING_KEYS)),
            machine=fields.free_object("machine"),
            overhead=_overhead(fields) if fields.has("overhead") else None,
        )


def _overhead(fields: Fields) -> Overhead:
    names = tuple(Overhead.__dataclass_fields__)
    row = fields.object("overhead", names)
    return Overhead(**{name: row.number(name) for name in names})


def _read(at: Sequence[int], seconds: Sequence[float] | FloatArray, x: Any) -> FloatArray:
    """`seconds`, measured `at` ascending numbers, read at `x` [...]."""
    read: FloatArray = np.interp(x, at, seconds)
    if len(at) > 1:  # by the whole range: two neighbours may lie on both sides of a step
        slope = max(0.0, (seconds[-1] - seconds[0]) / (at[-1] - at[0]))
        read = read + slope * np.maximum(0, np.asarray(x) - at[-1])
    return read


def _check_ascending(name: str, values: Sequence[int], minimum: int) -> None:
    if not values or values[0] < minimum or any(low >= high for low, high in pairwise(values)):
        raise ProfileError(f"cost.{name} must ascend from at least {minimum}, got {list(values)}")


def _integers(fields: Fields, key: str) -> tuple[int, ...]:
    values = fields.list_of(key)
    if not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        raise fields.error(key, "must be a list of integers")
    return tuple(values)


def _numbers(fields: Fields, row: list[Any]) -> tuple[float, ...]:
    if not all(is_number(value) for value in row):
        raise fields.error("seconds", "must hold finite numbers only")
    return tuple(float(value) for value in row)
