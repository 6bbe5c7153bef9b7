"""What a step is planned on: the facts of its requests, and how the loop and its latency targets keep time.

Reads a clock for targets alone; tokens never depend on it.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np

from echo_sched.loop.rows import Chunk
from echo_sched.scheduler.fairness import Pace
from echo_sched.scheduler.plan import Load
from echo_sched.tree import FloatArray
from echo_sched.types import Request

MEMORY = 0.2  # weight of the latest step in what steps take of late


class LoadMeter:
    """`load` when a step begins, `note` when its tokens are there."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """`clock` gives seconds."""
        self._clock = clock
        self._begun = 0.0
        self._step_seconds = 0.0

    def load(
        self, step: int, decoding: Sequence[Request], chunks: Sequence[Chunk], num_waiting_tokens: int = 0
    ) -> Load:
        self._begun = self._clock()
        cached = sum(request.num_computed for request in (*decoding, *(chunk.request for chunk in chunks)))
        num_prompt_tokens = sum(chunk.size for chunk in chunks)
        return Load(
            num_requests=len(decoding),
            step=step,
            num_prompt_tokens=num_prompt_tokens,
            num_cached_tokens=cached,
            priority=_priority(decoding),
            pace=self._pace(decoding),
            step_seconds=self._step_seconds,
            temperature=_temperature(decoding),
            num_waiting_tokens=num_waiting_tokens,
        )

    def note(self, emitting: Sequence[Request]) -> None:
        """The step gave these requests tokens."""
        now = self._clock()
        taken = now - self._begun
        self._step_seconds += (MEMORY if self._step_seconds else 1.0) * (taken - self._step_seconds)
        for request in emitting:
            if request.first_token_at is None:
                request.first_token_at = now

    def _pace(self, decoding: Sequence[Request]) -> Pace | None:
        """None where nobody that may draft has a target."""
        targets = [r.service.tpot_slo_ms if r.params.speculation else None for r in decoding]
        if not any(targets):
            return None
        begun = [self._begun if r.first_token_at is None else r.first_token_at for r in decoding]
        return Pace(
            np.array([np.inf if target is None else target / 1000.0 for target in targets]),
            self._begun - np.array(begun),
            np.array([len(r.output_ids) - 1 for r in decoding], np.int64),
        )


def _priority(decoding: Sequence[Request]) -> FloatArray | None:
    """None where all are alike."""
    weights = np.array([request.service.priority for request in decoding])
    return None if (weights == 1.0).all() else weights


def _temperature(decoding: Sequence[Request]) -> FloatArray | None:
    """None where all are greedy."""
    temperatures = np.array([0.0 if r.params.greedy else r.params.temperature for r in decoding])
    return temperatures if temperatures.any() else None
