"""Requests through one engine, never more than so many at once, and arms that take turns in a fair order.

Whoever measures says what is counted: the clock stands still meanwhile, and while other arms have their turn. Knows no
arm and no file.
"""

import itertools
import math
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

    def beside(self, config: EngineConfig) -> Engine:
        """The same with KV of its own, so that it may be at work while others are."""


def fair_order(arms: Sequence[Arm], concurrencies: Sequence[int], num_repeats: int) -> Iterator[tuple[int, int, Arm]]:
    """(repeat, concurrency, arm). Machines drift: arms follow each other closely and take turns at being first."""
    for repeat, concurrency in itertools.product(range(num_repeats), concurrencies):
        for arm in in_turn(arms, repeat):
            yield repeat, concurrency, arm


def in_turn(arms: Sequence[Arm], repeat: int) -> Sequence[Arm]:
    """The arms, each being the first in one repeat of as many."""
    first = repeat % len(arms)
    return (*arms[first:], *arms[:first])


class ClosedLoop:
    """Serves all requests; one that ends is followed by the next at once."""

    def __init__(self, engine: Engine, requests: Sequence[Request], concurrency: int, on_step: OnStep) -> None:
        self._engine = engine
        self._waiting = deque(requests)
        self._concurrency = concurrency
        self._on_step = on_step
        self._num_open = 0
        self.seconds = 0.0  # at work; `on_step`'s own are left out

    @property
    def done(self) -> bool:
        return not self._waiting and not self._num_open

    def run(self, seconds: float = math.inf) -> None:
        """Go on until all are served, or for so long and to the end of a step.

        Raises RequestError when the engine aborts a request.
        """
        until = self.seconds + seconds
        while not self.done and self.seconds < until:
            start = time.perf_counter()
            while self._waiting and self._num_open < self._concurrency:
                self._engine.add(self._waiting.popleft())
                self._num_open += 1
            assert self._engine.has_work, "an engine with open requests has work"
            events = self._engine.step()
            for event in events:
                if event.finish is not None and event.finish.type == "abort":
                    raise RequestError(f"request {event.request.request_id} was aborted: {event.finish.message}")
                self._num_open -= event.finish is not None
            record = self._engine.last_record
            assert record is not None, "a step leaves a record"
            self.seconds += time.perf_counter() - start  # arms that draft more leave more to count
            self._on_step(record, events, self.seconds)


def serve_closed(engine: Engine, requests: Sequence[Request], concurrency: int, on_step: OnStep) -> float:
    """Serve all at once. Returns seconds. Raises RequestError when the engine aborts a request."""
    loop = ClosedLoop(engine, requests, concurrency, on_step)
    loop.run()
    return loop.seconds


def serve_in_turns(loops: Sequence[ClosedLoop], turn_seconds: float) -> None:
    """Serve all of them to the end, each for so long at a time: a machine that slows down slows them all alike."""
    while not all(loop.done for loop in loops):
        for loop in loops:
            loop.run(turn_seconds)
