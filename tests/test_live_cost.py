"""A machine unlike its table is learned from steps, in scale and in shape."""

from dataclasses import replace

import numpy as np
import pytest

from echo_sched.scheduler.cost import CostTable, DraftingCost
from echo_sched.scheduler.economy import PROBE_STEPS
from echo_sched.scheduler.live_cost import LiveCost
from echo_sched.scheduler.plan import Feedback, Load
from echo_sched.scheduler.policy import PolicySettings, make_policy
from echo_sched.scheduler.starting_values import BUILT_IN_PROFILES
from tests.allocation_twin import drive

TABLE = CostTable(
    (1, 4, 8, 16), (0, 100), ((1.0, 2.0), (1.5, 2.5), (2.0, 3.0), (4.0, 5.0)), DraftingCost.constant(0.1), {}
)
NUM_STEPS = 400


def taught(seconds: dict[int, float], noise: float = 0.0) -> LiveCost:
    """Steps of each number of rows in turn, behind 100 cached tokens."""
    cost, numbers = LiveCost(TABLE), np.random.default_rng(0)
    for step in range(NUM_STEPS):
        for rows, truth in seconds.items():
            spike = 20.0 if step % 50 == 25 else 1.0
            cost.observe(rows, 100, truth * spike * np.exp(noise * numbers.normal()))
    return cost


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_scale_and_shape_are_learned_through_noise_and_interruptions(noise: float) -> None:
    truth = {1: 3.0, 4: 3.0, 6: 4.0, 16: 9.0}
    cost = taught(truth, noise=noise)
    found = [cost.seconds_for(rows, 100) for rows in truth]
    assert found == pytest.approx(list(truth.values()), rel=0.08)


def test_what_happens_to_every_step_moves_row_counts_that_are_not_in_use() -> None:
    cost = taught({4: 5.0})  # twice what the table says
    assert cost.seconds_for(4, 100) == pytest.approx(5.0, rel=0.05)
    assert cost.seconds_for(16, 100) > 1.6 * TABLE.seconds_for(16, 100)


def test_cached_tokens_are_read_as_measured() -> None:
    cost = taught({4: 5.0})
    assert cost.seconds_for(4, 0) / cost.seconds_for(4, 100) == pytest.approx(1.5 / 2.5)


def test_more_rows_never_take_less() -> None:
    cost = taught({4: 5.0, 8: 1.0})
    assert (np.diff(cost.curve(1, 40, 100)) >= 0).all()


def test_the_first_step_of_a_size_is_not_taken_for_what_others_take() -> None:
    cost = LiveCost(TABLE)
    cost.observe(4, 100, 50.0)
    assert cost.seconds_for(4, 100) == 2.5
    cost.observe(4, 100, 2.5)
    assert cost.seconds_for(4, 100) == pytest.approx(2.5)


def test_drafting_is_learned_through_interruptions_and_leaves_forwards_alone() -> None:
    cost = LiveCost(TABLE)
    cost.observe_drafting(4, (4, 4), 0, 50.0)  # the first of a size compiles
    assert cost.drafting == TABLE.drafting
    for step in range(NUM_STEPS):
        cost.observe_drafting(4, (4, 4), 0, 0.3 * (20.0 if step % 50 == 25 else 1.0))  # the table says 0.2
    assert cost.drafting.start(4) == pytest.approx(0.15, rel=0.08)
    assert cost.seconds_for(4, 100) == TABLE.seconds_for(4, 100)
    for _ in range(NUM_STEPS):
        cost.observe(4, 100, 5.0)  # the whole machine takes twice as long
    assert cost.drafting.start(4) == pytest.approx(0.2 * (1 + 0.5 * np.exp(-0.002 * NUM_STEPS)), rel=0.08)


def test_drafting_that_the_table_has_for_nothing_is_not_learned() -> None:
    cost = LiveCost(replace(TABLE, drafting=DraftingCost.constant(0.0)))
    for _ in range(3):
        cost.observe_drafting(4, (4, 4), 8, 0.3)
    assert cost.drafting.start(4) == 0.0


def test_a_policy_stops_drafting_where_drafting_takes_too_long() -> None:
    """The table has drafting for next to nothing, and so it has the forward's rows."""
    table = replace(TABLE, seconds=((1.0, 1.0), (1.01, 1.01), (1.02, 1.02), (1.03, 1.03)))
    policy = make_policy(PolicySettings(policy="goodput", k_max=12), replace(BUILT_IN_PROFILES["eagle3"], cost=table))
    num_levels = []
    for step in range(4 * PROBE_STEPS):
        load = Load(4, step)
        report = drive(policy.plan(load), [20] * 4, lambda request, path: [(1, 0.7)]).report
        num_levels.append(report.num_levels)
        forward = table.seconds_for(4 + int(report.num_nodes.sum()), 0)
        policy.observe(load, Feedback(report, None, forward, 2.0 * report.num_levels))
    assert num_levels[1] >= 2
    assert np.median(num_levels[-PROBE_STEPS:]) == 0


@pytest.mark.parametrize(("table", "truth"), [("dear", "cheap"), ("cheap", "dear")])
def test_a_table_that_is_wrong_about_drafts_is_found_out(table: str, truth: str) -> None:
    """What forwards really take decides in the end, whatever was measured before: probes go both ways."""
    machines = {
        "cheap": CostTable((1, 4, 8, 16), (0,), ((1.0,), (1.0,), (1.1,), (1.3,)), DraftingCost.constant(0.01), {}),
        "dear": CostTable((1, 4, 8, 16), (0,), ((1.0,), (2.0,), (4.0,), (8.0,)), DraftingCost.constant(0.01), {}),
    }
    settings = PolicySettings(policy="goodput", k_max=12)
    policy = make_policy(settings, replace(BUILT_IN_PROFILES["eagle3"], cost=machines[table]))
    num_nodes = []
    for step in range(60 * PROBE_STEPS):
        load = Load(4, step)
        report = drive(policy.plan(load), [20] * 4, lambda request, path: [(1, 0.7)]).report
        num_nodes.append(int(report.num_nodes.sum()))
        policy.observe(load, Feedback(report, None, machines[truth].seconds_for(4 + num_nodes[-1], 0)))
    early, late = np.median(num_nodes[1:PROBE_STEPS]), np.median(num_nodes[-PROBE_STEPS:])
    assert (early, late) == (12, 0) if truth == "dear" else early == 0 < late


def test_it_is_not_forgotten_with_the_policy_and_not_learned_where_that_is_off() -> None:
    profile, learned = replace(BUILT_IN_PROFILES["eagle3"], cost=TABLE), LiveCost(TABLE)
    load = Load(4, 0)
    prices = []
    for live_costs in ("on", "on", "off"):
        policy = make_policy(PolicySettings(policy="goodput", live_costs=live_costs), profile, learned)  # type: ignore[arg-type]
        for _ in range(3):
            price = policy.plan(load).price
            assert price is not None
            prices.append(price.verify_seconds[0])
            policy.observe(load, Feedback(drive(policy.plan(load), [20] * 4, lambda *_: []).report, None, 3.0))
    first, learned_first, table = prices[0], prices[3], prices[6]
    assert first == table == prices[8] == TABLE.seconds_for(4, 0)
    assert learned_first == pytest.approx(3.0)
