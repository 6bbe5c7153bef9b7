"""Seconds per phase of a step."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

PHASES = ("schedule", "draft", "verify", "accept", "commit")


class PhaseClock:
    """`with clock("draft"): ...` adds to that phase; phases may be entered repeatedly, not nested."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[phase] += time.perf_counter() - start
