"""What steps take beyond their forward and their drafting, from steps on the machine at hand.

Scheduling, packing, acceptance, commits and text are the host's, and grow with requests, nodes and levels: batches of
several sizes run without trees, with chains and with bushes, and what the cost table does not explain of their seconds
is split among the four. So a forward that is dearer among other work than alone is in it too. Knows no file.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import mul
from typing import NamedTuple

import numpy as np
from sklearn.linear_model import LinearRegression

from echo_sched.loop import DecodeLoop
from echo_sched.scheduler.cost import CostTable, Overhead
from echo_sched.scheduler.plan import AllocationReport, Load, Plan
from echo_sched.types import Request

SHAPES: tuple[tuple[int, ...], ...] = ((), (1, 1, 1), (2, 2, 1))  # children per node at each depth
NUM_TOKENS = 16  # per request
WAVES = 3  # of a lone request's steps there are fewest: they come so many times as often
OUTLIER = 4.0  # steps so many times the typical misfit away from the fit are the machine's, not the engine's


class TimedStep(NamedTuple):
    """A step without prompts."""

    num_requests: int
    num_nodes: int
    num_levels: int
    context: float  # of a request, on average
    seconds: float  # without drafting


class FixedShape:
    """Every request gets the same tree, priced by nobody."""

    name = "fixed shape"

    def __init__(self, children: Sequence[int]) -> None:
        self._children = tuple(children)

    def plan(self, load: Load) -> Plan:
        widths, depth = tuple(accumulate(self._children, mul)), len(self._children)
        k_max = load.num_requests * sum(widths)
        return Plan(k_max, depth, depth, widths, (None,) * depth, children=self._children)

    def observe(self, load: Load, report: AllocationReport) -> None:
        """Learns nothing."""


def time_steps(
    loop: DecodeLoop,
    requests: Sequence[Request],
    *,
    clock: Callable[[], float] = time.perf_counter,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> list[TimedStep]:
    """Run the prompts of `requests` in batches of every size on a loop like the idle `loop`.

    `report(done, total)` follows each batch.
    """
    shapes = [shape for shape in SHAPES if len(shape) <= loop.config.max_depth]
    batches = [
        (shape, size)
        for shape in shapes
        for size in batch_sizes(loop.config.max_batch_size)
        for _ in range(WAVES if size == 1 else 1)
        if size * sum(accumulate(shape, mul)) <= loop.config.k_max
    ]
    timed: list[TimedStep] = []
    for number, (shape, size) in enumerate(batches):
        twin = DecodeLoop(
            loop.config, loop.target, loop.drafter, FixedShape(shape), loop.profile,
            recording=loop.recording, sampler=loop.sampler,
        )  # fmt: skip
        for index in range(size):
            like = requests[(number + index) % len(requests)]
            params = replace(like.params, max_new_tokens=min(NUM_TOKENS, like.params.max_new_tokens), ignore_eos=True)
            twin.add(Request(f"timed {number}-{index}", like.prompt_ids, params))
        timed += _run(twin, clock)
        report(number + 1, len(batches))
    return timed


def batch_sizes(largest: int) -> list[int]:
    """1, 4, 16, ... and the largest."""
    return sorted({*(4**power for power in range(6) if 4**power < largest), largest})


def fit_overhead(steps: Sequence[TimedStep], cost: CostTable) -> Overhead | None:
    """Non-negative least squares of what `cost` leaves unexplained, outliers left out. None of no steps."""
    if not steps:
        return None
    counts = np.array([(1, step.num_requests, step.num_nodes, step.num_levels) for step in steps], np.float64)
    left = np.array([step.seconds - _forward_seconds(step, cost) for step in steps])
    found = _non_negative(counts, left)
    misfit = np.abs(left - counts @ found)
    typical = max(float(np.median(misfit)), math.ulp(1.0))
    found = _non_negative(counts[misfit <= OUTLIER * typical], left[misfit <= OUTLIER * typical])
    return Overhead(*map(float, found))


def _forward_seconds(step: TimedStep, cost: CostTable) -> float:
    return cost.seconds_for(step.num_requests + step.num_nodes, step.context, step.num_requests)


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
        if record.num_prompt_tokens or not record.num_decoding:
            continue
        behind = sum(event.request.num_tokens - len(event.token_ids) - 1 for event in events)
        timed.append(
            TimedStep(
                record.num_decoding,
                record.num_verified,
                record.num_levels,
                behind / record.num_decoding,
                seconds - record.seconds["draft"],
            )
        )
    return timed
