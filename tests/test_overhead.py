"""What a step takes on top: found again where it was planted, through a tiny engine and by numbers alone."""

import random
from collections.abc import Callable

import pytest

from calibration.overhead import SHAPES, TimedStep, batch_sizes, fit_overhead, time_steps
from echo_sched.scheduler.cost import CostTable
from echo_sched.types import Request, SamplingParams
from tests.fakes import ScriptedDrafter
from tests.loops import tiny_loop, tiny_target
from tests.tiny_models import VOCAB_SIZE, random_prompt

TABLE = CostTable(tuple(range(1, 200)), (0, 100), tuple((float(n), 2.0 * n) for n in range(1, 200)), 0.5, {})


def planted(num_requests: int, num_nodes: int, num_levels: int, context: float) -> TimedStep:
    seconds = TABLE.seconds_for(num_requests + num_nodes, context, num_requests)
    seconds += 0.5 + 0.25 * num_requests + 0.125 * num_nodes + 2.0 * num_levels
    return TimedStep(num_requests, num_nodes, num_levels, context, seconds)


def test_what_was_planted_is_found_in_spite_of_slow_spells() -> None:
    numbers = random.Random(0)
    steps = [
        planted(size, size * nodes, levels, 10.0 * numbers.random())
        for size in (1, 4, 16)
        for nodes, levels in ((0, 0), (3, 3), (10, 3), (2, 1))
        for _ in range(12)
    ]
    steps[5], steps[50] = (step._replace(seconds=50 * step.seconds) for step in (steps[5], steps[50]))
    found = fit_overhead(steps, TABLE)
    assert found is not None
    assert (found.step, found.request, found.node, found.level) == pytest.approx((0.5, 0.25, 0.125, 2.0))
    assert fit_overhead([], TABLE) is None


def test_nothing_is_below_zero_where_the_table_promises_too_much() -> None:
    steps = [step._replace(seconds=0.5) for step in (planted(1, 0, 0, 5.0), planted(4, 12, 3, 5.0))]
    found = fit_overhead(steps, TABLE)
    assert found is not None and min(found.step, found.request, found.node, found.level) == 0.0


def ticking() -> Callable[[], float]:
    """A clock that is a second on at each look."""
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 1.0
        return now

    return clock


def test_steps_of_every_shape_and_size_are_timed_and_the_loop_is_left_idle() -> None:
    target = tiny_target()
    requests = [Request(f"r{i}", random_prompt(5 + i, seed=i), SamplingParams(12, 0.0)) for i in range(3)]
    truth = {f"timed {number}-{index}": [1, 2, 3] for number in range(99) for index in range(9)}
    loop = tiny_loop(target, ScriptedDrafter(truth, [0.0], VOCAB_SIZE), k_max=24, max_batch_size=4)
    progress: list[tuple[int, int]] = []
    steps = time_steps(loop, requests, clock=ticking(), report=lambda done, total: progress.append((done, total)))
    assert not loop.has_work and target.kv.num_free == target.kv.num_slots
    assert {step.num_requests for step in steps} >= {1, 4} and {step.num_levels for step in steps} >= {0, 3}
    assert max(step.num_nodes for step in steps if step.num_requests == 1) == sum((2, 4, 4))
    assert max(step.num_nodes for step in steps) == 4 * 3  # bushes of four are more than K_max
    assert all(step.seconds <= 1.0 and step.context > 4 for step in steps)
    assert progress[-1][0] == progress[-1][1] == len(progress)
    lone = [step for step in steps if step.num_requests == 1 and step.num_nodes == 0]
    assert len({step.context for step in lone}) >= 11  # it grows with the answer
    assert not any(request.output_ids for request in requests)


def test_sizes_end_at_the_largest_batch() -> None:
    assert batch_sizes(1) == [1] and batch_sizes(4) == [1, 4] and batch_sizes(32) == [1, 4, 16, 32]
    assert SHAPES[0] == ()
