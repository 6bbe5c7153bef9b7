"""What a plain step takes beyond its forward, from steps on the machine at hand.

Scheduling, packing, acceptance, commits and text are the host's, and grow with requests: batches of several sizes
decode plainly, and what the cost table does not explain of their seconds is split in two. So a forward that is dearer
among other work than alone is in it too. What drafting adds is measured elsewhere. Knows no file.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from sklearn.linear_model import LinearRegression

from echo_sched.loop import DecodeLoop
from echo_sched.scheduler.cost import CostTable, Overhead
from echo_sched.types import Request

NUM_TOKENS = 16  # per request
WAVES = 3  # of a lone request's steps there are fewest: they come so many times as often
OUTLIER = 4.0  # steps so many times the typical misfit away from the fit are the machine's, not the engine's


class TimedStep(NamedTuple):
    """A plain step without prompts."""

    num_requests: int
    num_cached: int  # tokens that they had in their caches, together
    seconds: float


def time_steps(
    loop: DecodeLoop,
    requests: Sequence[Request],
    *,
    clock: Callable[[], float] = time.perf_counter,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> list[TimedStep]:
    """Answer the prompts of `requests` plainly in batches of every size on the idle `loop`'s target.

    `report(done, total)` follows each batch.
    """
    plain = loop.with_policy(loop.config.model_copy(update={"policy": "off"}))
    sizes = [size for size in batch_sizes(loop.config.max_batch_size) for _ in range(WAVES if size == 1 else 1)]
    timed: list[TimedStep] = []
    for number, size in enumerate(sizes):
        for index in range(size):
            like = requests[(number + index) % len(requests)]
            params = replace(like.params, max_new_tokens=min(NUM_TOKENS, like.params.max_new_tokens), ignore_eos=True)
            plain.add(Request(f"timed {number}-{index}", like.prompt_ids, params))
        timed += _run(plain, clock)
        report(number + 1, len(sizes))
    return timed


def batch_sizes(largest: int) -> list[int]:
    """1, 4, 16, ... and the largest."""
    return sorted({*(4**power for power in range(6) if 4**power < largest), largest})


def fit_overhead(steps: Sequence[TimedStep], cost: CostTable) -> Overhead | None:
    """Non-negative least squares of what `cost` leaves unexplained, outliers left out. None of no steps."""
    if not steps:
        return None
    counts = np.array([(1, step.num_requests) for step in steps], np.float64)
    left = np.array([step.seconds - cost.seconds_for(step.num_requests, step.num_cached) for step in steps])
    misfit = np.abs(left - counts @ _non_negative(counts, left))
    usual = misfit <= OUTLIER * max(float(np.median(misfit)), math.ulp(1.0))
    return Overhead(*map(float, _non_negative(counts[usual], left[usual])))


def _non_negative(counts: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    found: np.ndarray = LinearRegression(fit_intercept=False, positive=True).fit(counts, seconds).coef_
    return found


def _run(loop: DecodeLoop, clock: Callable[[], float]) -> list[TimedStep]:
    """To the end of all requests; their prompts' steps are left out."""
    timed = []
    while loop.has_work:
        start = clock()
        events = loop.step()
        seconds = clock() - start
        record = loop.last_record
        assert record is not None, "a step has just run"
        if record.num_decoding and not record.num_prompt_tokens:
            cached = sum(event.request.num_tokens - len(event.token_ids) - 1 for event in events)
            timed.append(TimedStep(record.num_decoding, cached, seconds))
    return timed
