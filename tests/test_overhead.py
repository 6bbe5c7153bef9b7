"""What a plain step takes on top: found again where it was planted, and timed through a tiny engine."""

from collections.abc import Callable

import pytest

from calibration.overhead import TimedStep, batch_sizes, fit_overhead, time_steps
from echo_sched.engine.draft.ngram import NGramDrafter
from echo_sched.scheduler.cost import CostTable, DraftingCost
from echo_sched.types import Request, SamplingParams
from tests.loops import tiny_loop, tiny_target
from tests.tiny_models import random_prompt

TABLE = CostTable((1, 100), (0, 100), ((1.0, 2.0), (100.0, 101.0)), DraftingCost.constant(0.5), {})


def planted(num_requests: int, num_cached: int) -> TimedStep:
    seconds = TABLE.seconds_for(num_requests, num_cached) + 0.5 + 0.25 * num_requests
    return TimedStep(num_requests, num_cached, seconds)


def test_what_was_planted_is_found_in_spite_of_slow_spells() -> None:
    steps = [planted(size, 7 * number) for size in (1, 4, 16) for number in range(12)]
    steps[5], steps[30] = (step._replace(seconds=50 * step.seconds) for step in (steps[5], steps[30]))
    found = fit_overhead(steps, TABLE)
    assert found is not None and (found.step, found.request) == pytest.approx((0.5, 0.25))
    assert fit_overhead([], TABLE) is None


def test_nothing_is_below_zero_where_the_table_promises_too_much() -> None:
    found = fit_overhead([planted(1, 5)._replace(seconds=0.5), planted(4, 9)._replace(seconds=0.5)], TABLE)
    assert found is not None and found.step == found.request == 0.0


def ticking() -> Callable[[], float]:
    """A clock that is a second on at each look."""
    looks = iter(range(1_000_000))
    return lambda: float(next(looks))


def test_plain_steps_of_every_size_are_timed_and_the_target_is_left_idle() -> None:
    target = tiny_target()
    requests = [Request(f"r{i}", random_prompt(5 + i, seed=i), SamplingParams(6, 0.0)) for i in range(3)]
    loop = tiny_loop(target, NGramDrafter(), max_batch_size=4)
    progress: list[tuple[int, int]] = []
    steps = time_steps(loop, requests, clock=ticking(), report=lambda done, total: progress.append((done, total)))
    assert target.kv.num_free == target.kv.num_slots and not any(request.output_ids for request in requests)
    assert {step.num_requests for step in steps} >= {1, 4} and all(step.seconds == 1.0 for step in steps)
    assert [step.num_cached for step in steps if step.num_requests == 1][:5] == [5, 6, 7, 8, 9]
    assert progress[-1] == (4, 4)


def test_sizes_end_at_the_largest_batch() -> None:
    assert batch_sizes(1) == [1] and batch_sizes(4) == [1, 4] and batch_sizes(32) == [1, 4, 16, 32]
