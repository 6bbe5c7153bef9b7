"""How long a request that drafts poorly waits for its tokens beside 31 that draft well, by a cost curve's clock."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from benchmarks.starvation import Gaps, summarise
from echo_sched.scheduler.cost import CostTable, DraftingCost
from echo_sched.scheduler.plan import Feedback, Load
from echo_sched.scheduler.policy import PolicySettings, make_policy
from echo_sched.scheduler.starting_values import built_in_profile
from tests.allocation_twin import drive

BATCH, NUM_STEPS = 32, 24
# nearly flat, then in proportion; a level of drafting takes a fiftieth of a plain step
LEVELS = DraftingCost.constant(0.02)
CURVE = CostTable((1, 32, 48, 64, 96, 128), (0,), ((1.0,), (1.0,), (1.02,), (1.1,), (1.5,), (2.0,)), LEVELS, {})


def one_of_them_unsure(request: int, path: tuple[int, ...]) -> list[tuple[int, float]]:
    return [(1, 0.02), (2, 0.01)] if request == BATCH - 1 else [(1, 0.9), (2, 0.05)]


@cache
def gaps(policy_name: str, **settings: object) -> list[float]:
    """Seconds of each step, which is what the unsure request waits: it gets its one token from every step."""
    chosen = PolicySettings(**{"policy": policy_name, "k_max": 96, **settings})  # type: ignore[arg-type]
    policy = make_policy(chosen, replace(built_in_profile("eagle3"), cost=CURVE))
    found = []
    for step in range(NUM_STEPS):
        load = Load(BATCH, step)
        report = drive(policy.plan(load), [20] * BATCH, one_of_them_unsure).report
        policy.observe(load, Feedback(report))
        rows = BATCH + int(report.num_nodes.sum())
        found.append(CURVE.seconds_for(rows, 0.0) + LEVELS.seconds(BATCH, report.frontiers, 0))
    return found


def p95_ratio(policy_name: str, **settings: object) -> float:
    return float(np.percentile(gaps(policy_name, **settings), 95) / np.percentile(gaps("off"), 95))


@pytest.mark.parametrize("policy_name", ["echo", "goodput"])
def test_with_a_bound_an_unserved_request_waits_hardly_longer_than_without_drafts(policy_name: str) -> None:
    bounded = gaps(policy_name, max_step_stretch=0.05)
    assert p95_ratio(policy_name, max_step_stretch=0.05) <= 1.05
    assert max(bounded) > 1.0, "something is still drafted"


@pytest.mark.parametrize("policy_name", ["echo", "goodput"])
def test_without_a_bound_the_best_rate_is_bought_with_its_time(policy_name: str) -> None:
    assert p95_ratio(policy_name) > 1.05


def test_a_floor_alone_shortens_no_gap() -> None:
    assert p95_ratio("echo", node_floor=2) >= p95_ratio("echo")


def test_ratios_are_paired_by_repeat() -> None:
    trials = {
        "off": [Gaps((1.0, 1.0), 2, 4.0), Gaps((2.0, 2.0), 2, 4.0)],
        "echo": [Gaps((1.2, 1.2), 2, 5.0), Gaps((2.2, 2.2), 4, 5.0)],
    }
    found = summarise(trials)["echo"]
    assert found["p95_ratio"]["range"] == pytest.approx([1.1, 1.2])
    assert found["mean_ratio"]["median"] == pytest.approx(1.15)
