"""Floors, latency targets, priorities and the bound on a step's time: what they guarantee, and worked examples."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from echo_sched.scheduler.fairness import Fairness, Pace
from echo_sched.scheduler.plan import Plan
from echo_sched.scheduler.price import Price
from tests.allocation_twin import Children, drive, scattered, scripted
from tests.plans import steps

many = settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
Step = tuple[Plan, list[int], int]


def fair_plan(k_max: int, fairness: Fairness | None, **changes: object) -> Plan:
    """Chains with a root gate that only the sure pass, and what is left for width."""
    plan = Plan(k_max, 4, 4, (1,) * 4, (0.5, None, None, None), widen=True, fairness=fairness)
    return replace(plan, **changes)  # type: ignore[arg-type]


def confident(request: int, path: tuple[int, ...]) -> list[tuple[int, float]]:
    return [(1, 0.9), (2, 0.05)]


def with_unsure(unsure: int) -> Children:
    """Everybody is confident but one."""
    return lambda request, path: [(1, 0.3), (2, 0.2), (3, 0.1)] if request == unsure else confident(request, path)


@many
@given(steps(), st.integers(1, 4))
def test_everybody_gets_its_floor_whatever_gate_and_price_say(step: Step, floor: int) -> None:
    plan, caps, seed = step
    fairness = Fairness.of(len(caps), plan.k_max, floor=floor)
    price = None if plan.price is None else plan.price._replace(max_seconds=np.inf)
    plan = replace(plan, shares=None, verify=True, fairness=fairness, price=price)
    report = drive(plan, caps, scattered(seed)).report
    num_seen = np.bincount(report.seen.offers.request, minlength=len(caps))
    assert (report.num_nodes >= np.minimum(min(floor, plan.k_max // len(caps)), num_seen)).all()


@many
@given(steps())
def test_nothing_changes_where_nobody_asks_for_anything(step: Step) -> None:
    plan, caps, seed = step
    plan = replace(plan, fairness=None)
    neutral = plan if plan.shares is not None else replace(plan, fairness=Fairness.of(len(caps), plan.k_max))
    plain, fair = drive(plan, caps, scattered(seed)), drive(neutral, caps, scattered(seed))
    assert fair.outcome == plain.outcome
    assert fair.report.expected == plain.report.expected


@many
@given(steps(), st.floats(1.0, 3.0))
def test_a_step_never_takes_longer_than_its_bound(step: Step, stretch: float) -> None:
    """Plain decoding apart: that is always allowed."""
    plan, caps, seed = step
    if plan.price is None:
        return
    price = plan.price._replace(max_seconds=stretch * plan.price.verify_seconds[0])
    report = drive(replace(plan, price=price), caps, scattered(seed)).report
    if report.num_levels:
        seconds = price.verify_seconds[report.num_nodes.sum()] + price.drafting_seconds(report.frontiers)
        assert seconds <= price.max_seconds


def test_a_floor_gives_a_truncated_request_its_best_offers_before_others_go_deeper() -> None:
    without = drive(fair_plan(8, None), [8, 8], with_unsure(0))
    assert without.report.num_nodes.tolist() == [3, 5]
    scarce = drive(fair_plan(4, None), [8, 8], with_unsure(0))
    assert scarce.report.num_nodes.tolist() == [0, 4]
    floored = drive(fair_plan(4, Fairness.of(2, 4, floor=1)), [8, 8], with_unsure(0))
    assert floored.report.num_nodes.tolist() == [1, 3]
    assert floored.outcome.widened == [(0, (1,))]  # a leaf: the gate still decides about depth
    assert floored.report.gate_truncated.tolist() == [1, 0]


def test_a_floor_is_at_most_an_even_share() -> None:
    driven = drive(fair_plan(5, Fairness.of(2, 5, floor=9)), [8, 8], with_unsure(0))
    assert driven.report.num_nodes.tolist() == [2, 3]


@pytest.mark.parametrize("rerank", [False, True])
def test_priority_decides_who_gets_what_is_scarce(rerank: bool) -> None:
    """Two alike requests, five nodes: arrival decides about the odd one unless priority does."""
    for weight, num_nodes in (((1.0, 1.0), [3, 2]), ((1.0, 2.0), [2, 3]), ((4.0, 1.0), [4, 1])):
        fairness = Fairness.of(2, 5, weight=np.array(weight))
        plan = fair_plan(5, fairness, thresholds=(None,) * 4, rerank=rerank, widen=not rerank)
        chains = scripted({request: {(1,) * depth: {1: 0.6} for depth in range(4)} for request in (0, 1)})
        nodes = drive(plan, [8, 8], chains).report.num_nodes.tolist()
        # level by level, everybody who asks is served while there is enough: only the third level is scarce
        assert nodes == (num_nodes if rerank or num_nodes != [4, 1] else [3, 2])


@pytest.mark.parametrize("rerank", [False, True])
def test_a_target_is_served_first_with_as_much_as_it_needs(rerank: bool) -> None:
    """Three sure requests could use all of K_max; the unsure one needs 0.45 tokens: its nodes of chance 0.3 and 0.2."""
    need = np.array([0.0, 0.0, 0.0, 0.45])
    plan = fair_plan(6, None, thresholds=(None,) * 4, rerank=rerank, widen=not rerank)
    assert drive(plan, [8] * 4, with_unsure(3)).report.num_nodes[3] <= 1
    driven = drive(replace(plan, fairness=Fairness.of(4, 6, need=need)), [8] * 4, with_unsure(3))
    assert driven.report.num_nodes[3] == 2
    assert driven.report.num_nodes.sum() == 6


def test_what_a_target_needs_is_bought_at_any_price() -> None:
    dear = Price(2.0, 1.0 + np.arange(9.0), 0.0, 0.0, np.zeros(1), np.ones(4))
    for need, num_nodes in ((0.0, [0, 0]), (0.5, [0, 1]), (1.0, [0, 2])):
        fairness = Fairness.of(2, 8, need=np.array([0.0, need]))
        plan = fair_plan(8, fairness, price=dear, thresholds=(None,) * 4)
        assert drive(plan, [8, 8], confident).report.num_nodes.tolist() == num_nodes


def test_a_hopeless_target_takes_no_more_than_its_shares() -> None:
    fairness = Fairness.of(4, 8, need=np.array([100.0, 0.0, 0.0, 0.0]))
    wide = fair_plan(8, fairness, widths=(4,) * 4, thresholds=(None,) * 4, rerank=True, widen=False)

    def children(request: int, path: tuple[int, ...]) -> list[tuple[int, float]]:
        return [(token, 0.01) for token in range(9)] if request == 0 else confident(request, path)

    assert drive(wide, [8] * 4, children).report.num_nodes[0] == 4  # half of K_max
    assert Fairness.of(32, 64).most_claimed == 8  # four even shares


def test_tokens_needed_follow_from_target_step_and_deficit() -> None:
    pace = Pace(np.array([0.1, 0.1, np.inf]), np.array([1.0, 1.0, 5.0]), np.array([10, 8, 0]))
    # 1.2 s after its first token a request of 10 tokens per second should have 12: two more than the first has, whose
    # root brings one of them
    assert pace.tokens_needed(0.2) == pytest.approx([1.0, 3.0, 0.0])
