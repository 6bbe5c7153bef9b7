"""Requests through one engine, never more than so many at once, and arms that take turns in a fair order.

Whoever measures says what is counted: the clock stands still meanwhile. Knows no arm and no file.
"""

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from echo_sched.config import EngineConfig
from echo_sched.errors import RequestError
from echo_sched.types import Request, StepRecord, TokenEvent

Arm = TypeVar("Arm")
OnStep = Callable[[StepRecord, Sequence[TokenEvent], float], None]  # (record, events, seconds since the start)


class Engine(Protocol):
    """What a measurement needs of a decode loop."""

    def add(self, request: Request) -> None: ...

    def step(self) -> list[TokenEvent]: ...

    @property
    def has_work(self) -> bool: ...

    @property
    def last_record(self) -> StepRecord | None: ...


class SharedEngine(Engine, Protocol):
    """A decode loop whose loaded target serves one arm after the other."""

    def with_policy(self, config: EngineConfig) -> Engine:
        """An idle engine with these settings on the same weights and KV."""


def fair_order(arms: Sequence[Arm], concurrencies: Sequence[int], num_repeats: int) -> Iterator[tuple[int, int, Arm]]:
    """(repeat, concurrency, arm). Machines drift: arms follow each other closely and take turns at being first."""
    for repeat, concurrency in itertools.product(range(num_repeats), concurrencies):
        for arm in in_turn(arms, repeat):
            yield repeat, concurrency, arm


def in_turn(arms: Sequence[Arm], repeat: int) -> Sequence[Arm]:
    """The arms, each being the first in one repeat of as many."""
    first = repeat % len(arms)
    return (*arms[first:], *arms[:first])


def serve_closed(engine: Engine, requests: Sequence[Request], concurrency: int, on_step: OnStep) -> float:
    """Serve all requests; one that ends is followed by the next at once. Returns seconds, `on_step`'s own left out.

    Raises RequestError when the engine aborts a request.
    """
    waiting, num_open = deque(requests), 0
    start, aside = time.perf_counter(), 0.0
    while waiting or num_open:
        while waiting and num_open < concurrency:
            engine.add(waiting.popleft())
            num_open += 1
        assert engine.has_work, "an engine with open requests has work"
        events = engine.step()
        for event in events:
            if event.finish is not None and event.finish.type == "abort":
                raise RequestError(f"request {event.request.request_id} was aborted: {event.finish.message}")
            num_open -= event.finish is not None
        record = engine.last_record
        assert record is not None, "a step leaves a record"
        paused = time.perf_counter()  # arms that draft more leave more to count
        on_step(record, events, paused - start - aside)
        aside += time.perf_counter() - paused
    return time.perf_counter() - start - aside
