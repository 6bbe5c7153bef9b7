"""The allocation against its slow twin, its invariants, and worked examples small enough to check by eye."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from echo_sched.scheduler.acceptance import Acceptance
from echo_sched.scheduler.budget import Allocation
from echo_sched.scheduler.order import even_shares
from echo_sched.scheduler.plan import Plan
from echo_sched.scheduler.price import Price
from echo_sched.tree import Offers, is_prefix_closed
from tests.allocation_twin import Driven, SlowAllocation, drive, scattered, scripted
from tests.plans import steps

many = settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])


@settings(many, max_examples=400)
@given(steps())
def test_allocation_equals_its_slow_twin(step: tuple[Plan, list[int], int]) -> None:
    plan, caps, seed = step
    found, expected = drive(plan, caps, scattered(seed)).outcome, SlowAllocation(plan, caps, scattered(seed)).run()
    assert found == expected
    assert np.array(found.chances) == pytest.approx(np.array(expected.chances))


@many
@given(steps())
def test_invariants(step: tuple[Plan, list[int], int]) -> None:
    plan, caps, seed = step
    driven = drive(plan, caps, scattered(seed))
    assert sum(len(tree) for tree in driven.trees) <= plan.k_max
    for request, (tree, cap) in enumerate(zip(driven.trees, caps, strict=True)):
        assert max(tree.depths, default=0) <= min(cap, plan.max_depth)
        assert is_prefix_closed(tree.parents)
        assert len(set(zip(tree.parents, tree.tokens, strict=True))) == len(tree), "siblings are distinct"
        if plan.shares is not None:
            assert len(tree) <= plan.shares[request]
    for request, path in driven.outcome.widened:
        longer = [other for owner, other in driven.outcome.grown + driven.outcome.widened if owner == request]
        assert not any(other[:-1] == path for other in longer), "a widened node is a leaf"
    report = driven.report
    assert len(report.parents) == report.num_levels and (report.children <= report.parents + 1e-12).all()
    assert not ((report.gate_truncated > 0) & (report.budget_truncated > 0)).any(), "truncated once"
    assert sum(report.truncated_by_depth.values()) == report.truncated.sum()


@many
@given(steps(), st.integers(0, 1000))
def test_the_order_of_candidates_changes_nothing(step: tuple[Plan, list[int], int], order: int) -> None:
    plan, caps, seed = step
    shuffled = drive(plan, caps, scattered(seed), shuffle=random.Random(order))
    assert shuffled.outcome == drive(plan, caps, scattered(seed)).outcome


@many
@given(steps())
def test_nothing_that_could_be_paid_for_is_left_when_width_is_free(step: tuple[Plan, list[int], int]) -> None:
    plan, caps, seed = step
    free = replace(plan, shares=None, widen=True, widen_scope="all", rerank=False, price=None, verify=True)
    driven = drive(free, caps, scattered(seed))
    assert sum(driven.outcome.num_nodes) == min(plan.k_max, driven.outcome.num_offered)


@many
@given(steps())
def test_shares_that_nobody_fills_change_nothing(step: tuple[Plan, list[int], int]) -> None:
    """Without a gate to discard anything, an even split matters only once somebody meets it."""
    plan, caps, seed = step
    roomy = replace(plan, k_max=1000 * len(caps), thresholds=(None,) * plan.max_depth, price=None, fairness=None)
    split = drive(replace(roomy, shares=(1000,) * len(caps)), caps, scattered(seed))
    assert split.outcome == drive(replace(roomy, shares=None), caps, scattered(seed)).outcome


@many
@given(steps())
def test_a_read_depth_truncates_exactly_the_unconfident(step: tuple[Plan, list[int], int]) -> None:
    plan, caps, seed = step
    driven = drive(replace(plan, truncation_rates=None, gate_scope="request"), caps, scattered(seed))
    for request, depth, confidence, unsure, let_through in driven.outcome.readings:
        threshold = plan.thresholds[depth - 1]
        assert let_through == (threshold is None or confidence > threshold)
        assert unsure == (not let_through)
        assert (driven.outcome.gate_truncated[request] == depth) == unsure


@many
@given(steps())
def test_no_tree_within_the_shares_is_better_than_the_reranked_one(step: tuple[Plan, list[int], int]) -> None:
    """Whoever was seen and not kept is no better than the worst that was kept of the same request."""
    plan, caps, seed = step
    plan = replace(plan, rerank=True, widen=False, price=None, acceptance=Acceptance(), verify=True)
    driven = drive(plan, caps, scattered(seed))
    free = drive(replace(plan, k_max=10**6, shares=None), caps, scattered(seed))  # keeps all that is seen
    for tree, whole in zip(driven.trees, free.trees, strict=True):
        best = sorted(whole.path_logps, reverse=True)
        if plan.shares is not None:
            assert sorted(tree.path_logps, reverse=True) == best[: len(tree)]
    assert driven.report.num_widened.sum() == 0
    assert (driven.report.num_nodes == [len(tree) for tree in driven.trees]).all()


@many
@given(steps(), st.booleans())
def test_what_is_bought_at_a_price_is_never_worth_less_than_nothing(
    step: tuple[Plan, list[int], int], rerank: bool
) -> None:
    plan, caps, seed = step
    assume(plan.price is not None)
    assert plan.price is not None
    free = replace(plan, rerank=rerank, widen=not rerank, verify=True, fairness=None)  # what is claimed may cost
    driven = drive(free, caps, scattered(seed))
    report, price = driven.report, plan.price
    drafting = price.drafting_seconds(report.frontiers)
    rate = (price.base_tokens + report.expected) / (price.verify_seconds[report.num_nodes.sum()] + drafting)
    assert rate >= price.base_tokens / (price.verify_seconds[0] + drafting) * (1 - 1e-12)


FLAT = Price(2.0, np.full(9, 1.0), 0.0, 0.1, np.array([0.1]), np.ones(4))


def test_free_verification_buys_everything_and_a_steep_curve_nothing() -> None:
    steep = FLAT._replace(verify_seconds=1.0 + np.arange(9.0))
    for price, num_nodes in ((FLAT, 6), (steep, 0)):
        driven = drive(echo_plan(8, price=price), [8, 8], scripted({0: UNSURE, 1: SURE}))
        assert driven.report.num_nodes.sum() == num_nodes
        assert (driven.report.price_truncated > 0).any() == (num_nodes == 0)


def test_a_step_of_the_curve_is_bought_up_to_its_end() -> None:
    """Three nodes (0.9, 0.81, 0.35) are free beside two roots; the fourth, of chance 0.73, would cost 0.5 s for all."""
    stairs = FLAT._replace(verify_seconds=np.array([1.0] * 4 + [1.5] * 5), start_seconds=0.0, level_seconds=np.zeros(1))
    driven = drive(echo_plan(8, price=stairs, thresholds=(None,) * 4), [8, 8], scripted({0: UNSURE, 1: SURE}))
    assert driven.report.num_nodes.tolist() == [1, 2]


def test_a_level_that_cannot_pay_for_its_drafting_is_not_drafted() -> None:
    """Each further level is hoped to add 0.9, 0.81, ... tokens to 2 per second."""
    dear = FLAT._replace(start_seconds=0.4, level_seconds=np.array([0.4]), base_tokens=1.0)
    driven = drive(echo_plan(8, price=dear), [8], scripted({0: SURE}))
    rates = [(1 + sum(0.9**d for d in range(1, n + 1))) / (1 + 0.4 * n) for n in range(1, 5)]
    assert driven.report.num_levels == 1 + rates.index(max(rates))


def test_a_level_competes_with_what_widening_can_buy_without_it() -> None:
    """Two nodes are free. The gate stops the second request, whose candidate is nearly as good as a further level."""
    stairs = FLAT._replace(verify_seconds=np.array([1.0, 1.0, 1.0, 3.0, 9.0]), start_seconds=0.0)
    offers = scripted({0: {(): {1: 0.9}, (1,): {2: 0.3}}, 1: {(): {3: 0.59}}})
    levels = {}
    for widen in (False, True):
        plan = echo_plan(4, price=stairs, thresholds=(0.6, None, None, None), widen=widen)
        levels[widen] = drive(plan, [8, 8], offers).report.num_levels
    assert levels == {False: 2, True: 1}


def test_a_level_below_many_nodes_pays_less_than_one_below_few() -> None:
    """Four trees are worth four times as much, but levels take more than that below four nodes."""
    flat = FLAT._replace(verify_seconds=np.full(17, 1.0), level_seconds=np.array([0.1, 0.1, 0.1, 0.1, 4.0]))
    levels = {}
    for size in (1, 4):
        price = flat._replace(base_tokens=float(size))
        driven = drive(echo_plan(16, price=price), [8] * size, scripted(dict.fromkeys(range(size), SURE)))
        levels[size] = driven.report.frontiers
    assert levels == {1: (1, 1, 1, 1), 4: (4,)}


def echo_plan(k_max: int, **changes: object) -> Plan:
    """Chains of width 1 to depth 4, target depth 2, root gate and target gate."""
    plan = Plan(
        k_max=k_max,
        max_depth=4,
        target_depth=2,
        widths=(1,) * 4,
        thresholds=(0.4, 0.3, None, None),
        widen=True,
    )
    return replace(plan, **changes)  # type: ignore[arg-type]


SURE = {(): {1: 0.9}, (1,): {2: 0.9}, (1, 2): {3: 0.9}, (1, 2, 3): {4: 0.9}}
UNSURE = {(): {5: 0.35, 6: 0.3}, (5,): {7: 0.9}}


def test_budget_of_a_request_truncated_at_the_root_deepens_another_beyond_the_target_depth() -> None:
    driven = drive(echo_plan(4), [8, 8], scripted({0: UNSURE, 1: SURE}))
    assert driven.outcome.grown == [(1, (1,)), (1, (1, 2)), (1, (1, 2, 3)), (1, (1, 2, 3, 4))]
    assert driven.report.deepened == {3: 1, 4: 1}
    assert driven.report.gate_truncated.tolist() == [1, 0]
    assert driven.report.num_transferred == 2  # beyond its even share of 2
    assert driven.outcome.widened == []  # depth came first and took all


def test_what_depth_cannot_use_widens_the_truncation_point() -> None:
    driven = drive(echo_plan(6), [8, 3], scripted({0: UNSURE, 1: SURE}))
    assert driven.outcome.widened == [(0, (5,)), (0, (6,))]
    assert driven.report.num_widened.tolist() == [2, 0]
    assert sum(driven.outcome.num_nodes) == 5  # R is left over: request 0's child (5, 7) was never drafted


def test_without_transfer_what_a_truncated_request_leaves_is_discarded() -> None:
    driven = drive(echo_plan(5, shares=(3, 2)), [8, 8], scripted({0: UNSURE, 1: SURE}))
    assert driven.outcome.num_nodes == [0, 2]
    assert driven.outcome.widened == []
    assert driven.report.num_transferred == 0


def test_widening_everywhere_or_at_truncation_points_only() -> None:
    bushy = {(): {1: 0.9, 2: 0.8}, (1,): {3: 0.5}}
    script = scripted({0: bushy, 1: UNSURE})
    everywhere = drive(echo_plan(5), [2, 8], script)
    assert everywhere.outcome.widened == [(0, (2,)), (1, (5,)), (1, (6,))]
    at_truncation = drive(echo_plan(5, widen_scope="truncation"), [2, 8], script)
    assert at_truncation.outcome.widened == [(1, (5,)), (1, (6,))]


def test_budget_shortage_goes_to_the_best_paths_and_ties_to_arrival_then_token() -> None:
    equal = {(): {9: 0.5, 4: 0.5}}
    driven = drive(echo_plan(4, widths=(2,) * 4), [8, 8, 8], scripted({0: equal, 1: equal, 2: {(): {1: 0.6}}}))
    assert driven.outcome.grown == [(2, (1,)), (0, (4,)), (0, (9,)), (1, (4,))]
    assert not driven.report.truncated.any()  # request 1 got one of its two
    shorter = drive(echo_plan(3, widths=(2,) * 4), [8, 8, 8], scripted({0: equal, 1: equal, 2: {(): {1: 0.6}}}))
    assert shorter.outcome.grown == [(2, (1,)), (0, (4,)), (0, (9,))]
    assert shorter.report.truncated_by_depth == {1: 1}
    assert shorter.report.budget_truncated.tolist() == [0, 1, 0]


def test_the_gate_is_read_before_anything_is_charged() -> None:
    """Two unsure requests ahead in arrival order leave the whole of K_max to the sure one behind them."""
    driven = drive(echo_plan(2), [8, 8, 8], scripted({0: UNSURE, 1: UNSURE, 2: SURE}))
    assert driven.outcome.num_nodes == [0, 0, 2]


def test_equality_with_the_threshold_truncates() -> None:
    driven = drive(echo_plan(4, thresholds=np.ones(4)), [8], scripted({0: {(): {1: 1.0}}}))
    assert driven.report.gate_truncated.tolist() == [1]


def test_nobody_passes_the_target_depth_against_its_checkpoint() -> None:
    fading = {(): {1: 0.5}, (1,): {2: 0.5}, (1, 2): {3: 1.0}}
    closed = drive(echo_plan(9), [8], scripted({0: fading}))
    assert closed.report.gate_truncated.tolist() == [2]  # 0.25 <= 0.3
    assert closed.report.deepened == {}
    unread = drive(echo_plan(9, thresholds=(0.4, None, None, None)), [8], scripted({0: fading}))
    assert unread.report.deepened == {3: 1}  # no checkpoint there: nothing to read


FORKED = {
    (): {1: 0.6, 2: 0.35},
    (1,): {3: 0.6},
    (2,): {4: 1.0},
    (1, 3): {5: 0.5},
    (2, 4): {6: 1.0},
}


def test_branch_scope_stops_branches_one_by_one() -> None:
    plan = echo_plan(9, widths=(2,) * 4, thresholds=(0.3, 0.4, None, None))
    whole = drive(plan, [8], scripted({0: FORKED}))
    # c at depth 2 is 0.36: below 0.4, so the request is truncated although one branch's node has 0.6
    assert whole.report.gate_truncated.tolist() == [2]
    branch = drive(replace(plan, gate_scope="branch"), [8], scripted({0: FORKED}))
    assert branch.outcome.grown == [(0, (1,)), (0, (2,)), (0, (1, 3)), (0, (1, 3, 5))]
    assert branch.outcome.widened == [(0, (2, 4))]  # the branch of node 2 (0.35) stopped there
    assert not branch.report.truncated.any()
    narrow = replace(plan, gate_scope="branch", widths=(2, 1, 1, 1), widen_scope="truncation")
    wider = FORKED | {(1,): {3: 0.6, 7: 0.3}}
    assert drive(narrow, [8], scripted({0: wider})).outcome.widened == [(0, (2, 4))]  # (1, 7) only lacked width


def test_branch_scope_truncates_the_request_when_no_branch_is_left() -> None:
    plan = echo_plan(9, widths=(2,) * 4, thresholds=(0.3, 0.7, None, None), gate_scope="branch", widen=False)
    driven = drive(plan, [8], scripted({0: FORKED}))
    assert driven.outcome.num_nodes == [2]
    assert driven.report.gate_truncated.tolist() == [2]


def test_branch_scope_reads_the_offers_themselves_at_the_root() -> None:
    plan = echo_plan(9, widths=(2,) * 4, thresholds=(0.4, None, None, None), gate_scope="branch", widen=False)
    assert drive(plan, [1], scripted({0: FORKED})).outcome.grown == [(0, (1,))]


def test_every_depth_with_candidates_is_reported_whether_or_not_it_is_read() -> None:
    driven = drive(echo_plan(4), [8, 8], scripted({0: UNSURE, 1: SURE}))
    rows = [(request, depth, let_through) for request, depth, _, _, let_through in driven.outcome.readings]
    assert rows == [(0, 1, False), (1, 1, True), (1, 2, True), (1, 3, True), (1, 4, True)]
    assert [reading[2] for reading in driven.outcome.readings] == pytest.approx([0.35, 0.9, 0.81, 0.729, 0.6561])


def test_a_request_without_candidates_ends_without_being_truncated() -> None:
    driven = drive(echo_plan(9), [8, 8], scripted({0: {(): {1: 0.9, 2: 0.8}}, 1: SURE}))
    assert not driven.report.truncated.any()
    assert driven.outcome.widened == [(0, (2,))]  # and may still be widened


def test_no_budget_no_room_or_no_requests_means_no_trees() -> None:
    for plan, caps in ((echo_plan(0), [8, 8]), (echo_plan(5), [0, 0]), (echo_plan(5), [])):
        allocation = Allocation(plan, np.array(caps, np.int64))
        assert allocation.done
        assert allocation.finish().leaves.offers.size == 0
        assert allocation.report.num_nodes.tolist() == [0] * len(caps)


def test_requests_whose_share_is_zero_draft_nothing() -> None:
    allocation = Allocation(echo_plan(1, shares=(1, 0)), np.array([8, 8]))
    assert allocation.active.tolist() == [True, False]


BEAM = {
    (): {1: 0.6, 2: 0.3, 3: 0.1},
    (1,): {4: 0.2, 5: 0.1},
    (2,): {6: 0.9, 7: 0.05},
    (2, 6): {8: 0.9},
    (1, 4): {9: 0.5},
}


def test_rerank_keeps_the_best_of_all_that_was_seen_and_drops_what_it_drafted_in_vain() -> None:
    """Depth 1 grows 1 and 2, depth 2 grows (2, 6) and (1, 4), depth 3 (2, 6, 8) and (1, 4, 9); S decides what stays."""
    plan = Plan(5, 3, 3, (2,) * 3, (None,) * 3, shares=(5,), rerank=True)
    driven = drive(plan, [8], scripted({0: BEAM}))
    assert [path for _, path in driven.outcome.grown] == [(1,), (2,), (2, 6), (1, 4), (2, 6, 8), (1, 4, 9)]
    assert driven.outcome.reranked == {(0, (1,)), (0, (2,)), (0, (2, 6)), (0, (2, 6, 8)), (0, (1, 4))}
    assert driven.report.num_dropped.tolist() == [1]


def test_rerank_turns_what_was_only_seen_into_leaves() -> None:
    plan = Plan(7, 2, 2, (1,) * 2, (None,) * 2, shares=(7,), rerank=True)
    driven = drive(plan, [8], scripted({0: BEAM}))
    assert driven.outcome.reranked == {(0, path) for path in ((1,), (2,), (3,), (1, 4), (1, 5))}
    assert driven.report.num_dropped.tolist() == [0]


def test_an_empty_frontier_ends_growth() -> None:
    allocation = Allocation(echo_plan(4), np.array([8]))
    grant = allocation.grant(Offers.empty())
    assert allocation.done
    assert not grant.active.any()


def test_even_shares_give_the_remainder_to_the_first_arrivals() -> None:
    assert even_shares(8, 3).tolist() == [3, 3, 2]
    assert even_shares(2, 3).tolist() == [1, 1, 0]
    assert even_shares(5, 0).tolist() == []


def test_the_random_steps_reach_every_rule() -> None:
    """The comparison with the twin is worth what its examples cover."""
    seen: dict[str, int] = {}
    for seed in range(60):
        plan = Plan(
            k_max=6 + seed % 15,
            max_depth=4,
            target_depth=2,
            widths=(2,) * 4,
            thresholds=(0.45, 0.21, None, None),
            widen=True,
        )
        driven: Driven = drive(plan, [4, 4, 3, 5], scattered(seed))
        report = driven.report
        seen["transferred"] = seen.get("transferred", 0) + report.num_transferred
        for name, value in (
            ("gate", np.count_nonzero(report.gate_truncated)),
            ("budget", np.count_nonzero(report.budget_truncated)),
            ("deepened", sum(report.deepened.values())),
            ("widened", int(report.num_widened.sum())),
        ):
            seen[name] = seen.get(name, 0) + value
    assert min(seen[name] for name in ("gate", "budget", "deepened", "widened", "transferred")) >= 5


def test_what_is_not_verified_is_grown_offered_and_dropped() -> None:
    plan = Plan(100, 3, 3, (2,) * 3, (None,) * 3)
    verified = drive(plan, [3, 3], scripted({0: FORKED, 1: FORKED}))
    dropped = drive(replace(plan, verify=False), [3, 3], scripted({0: FORKED, 1: FORKED}))
    assert dropped.outcome.grown == verified.outcome.grown != []
    assert dropped.outcome.num_dropped == verified.outcome.num_nodes
    assert dropped.outcome.num_nodes == [0, 0] == [len(tree) for tree in dropped.trees]
    assert dropped.report.expected == 0.0 < verified.report.expected
    assert dropped.report.seen.node.tolist() == verified.report.seen.node.tolist()
    assert dropped.report.num_levels == verified.report.num_levels
