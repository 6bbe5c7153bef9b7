"""What each policy plans, and what its plans come to when they are carried out."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_sched.errors import ConfigError
from echo_sched.scheduler.budget import Allocation
from echo_sched.scheduler.depths import Checkpoint, DepthStats
from echo_sched.scheduler.plan import Feedback
from echo_sched.scheduler.policy import Load, Plan, PolicySettings, make_policy
from echo_sched.scheduler.starting_values import BUILT_IN_PROFILES
from echo_sched.tree import ROOT, Offers
from tests.allocation_twin import Children, drive, scattered

PROFILE = replace(
    BUILT_IN_PROFILES["ngram"],
    target_depth=3,
    typical_depth=2.0,
    checkpoints=(
        Checkpoint(1, (0.4,), None, None, None, 300),
        Checkpoint(3, (0.2,), None, None, None, 100),
    ),
    depths=tuple(
        DepthStats(depth, 100, 0.5, 0.5, None, None, None, threshold)
        for depth, threshold in ((1, 0.4), (2, None), (3, 0.2), (4, 0.1))
    ),
)


FOUR_REQUESTS = Load(num_requests=4, step=0)


def plan(load: Load = FOUR_REQUESTS, **changes: Any) -> Plan:
    return make_policy(PolicySettings(**changes), PROFILE).plan(load)


def bushy(width: int) -> Children:
    """Every node has `width` children, best first by token; all of them rather sure."""
    return lambda request, path: [(token, 0.9 - 0.1 * token) for token in range(width)]


def test_off_plans_no_nodes() -> None:
    assert plan(policy="off", k_max=32).k_max == 0
    assert drive(plan(policy="off"), [8] * 4, bushy(4)).outcome.num_offered == 0


def test_static_is_one_fixed_tree_per_request() -> None:
    driven = drive(plan(Load(2, 0), policy="static", k_max=200), [8, 8], bushy(4))
    for tree in driven.trees:
        assert [tree.depths.count(depth) for depth in range(1, 7)] == [3, 6, 12, 12, 12, 0]
        for node, depth in enumerate(tree.depths):
            assert tree.parents.count(node) in {1: (2,), 2: (2,), 3: (1,), 4: (1,), 5: (0,)}[depth]


def test_static_respects_branching_and_depth() -> None:
    driven = drive(plan(Load(1, 0), policy="static", k_max=200, branching=2, max_depth=3), [8], bushy(2))
    assert [driven.trees[0].depths.count(depth) for depth in range(1, 5)] == [2, 4, 8, 0]


@settings(max_examples=80)
@given(st.integers(0, 60), st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(0, 1000))
def test_static_never_exceeds_an_even_share(k_max: int, caps: list[int], seed: int) -> None:
    driven = drive(plan(Load(len(caps), 0), policy="static", k_max=k_max), caps, scattered(seed))
    assert max(driven.outcome.num_nodes) <= k_max // len(caps)
    assert driven.outcome.widened == []
    assert driven.report.num_transferred == 0
    assert not driven.report.truncated.any()  # a cut tree is finished, not truncated


def test_static_fills_its_share_level_by_level() -> None:
    driven = drive(plan(Load(4, 0), policy="static", k_max=23), [8] * 4, bushy(4))
    assert driven.outcome.num_nodes == [5] * 4  # floor(23 / 4)
    assert [tree.depths for tree in driven.trees] == [[1, 1, 1, 2, 2]] * 4


@pytest.mark.parametrize(("num_requests", "num_nodes"), [(1, 9), (2, 9), (3, 2), (7, 2), (8, 0), (50, 0)])
def test_table_is_one_fixed_tree_per_range_of_batch_sizes(num_requests: int, num_nodes: int) -> None:
    planned = plan(Load(num_requests, 0), policy="table", shapes="1=3.2/3=1.1/8=", k_max=100)
    assert drive(planned, [8] * num_requests, bushy(4)).outcome.num_nodes == [num_nodes] * num_requests
    assert planned.k_max == (100 if num_nodes else 0)


@pytest.mark.parametrize("shapes", ["", "1", "2=1.1", "1=1/1=2", "1=1/8=2/4=1", "1=0", "1=1..2", "1=x", "x=1"])
def test_shapes_that_make_no_sense_are_refused(shapes: str) -> None:
    with pytest.raises(ConfigError, match="shapes"):
        PolicySettings(policy="table", shapes=shapes)


def test_dynamic_is_a_beam_and_the_best_of_all_it_saw() -> None:
    """On equal children the shallow ones are best: 3 nodes grow per depth, and 9 of the 12 + 12 seen are kept."""
    driven = drive(plan(Load(2, 0), policy="dynamic", k_max=18, branching=3, max_depth=2), [8, 8], bushy(3))
    assert [driven.report.num_nodes.tolist(), driven.report.num_dropped.tolist()] == [[9, 9], [0, 0]]
    for tree in driven.trees:
        assert [tree.depths.count(depth) for depth in range(1, 4)] == [3, 6, 0]


@settings(max_examples=80)
@given(st.integers(0, 60), st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(0, 1000))
def test_dynamic_never_exceeds_an_even_share_nor_widens(k_max: int, caps: list[int], seed: int) -> None:
    driven = drive(plan(Load(len(caps), 0), policy="dynamic", k_max=k_max), caps, scattered(seed))
    assert max(driven.outcome.num_nodes) <= k_max // len(caps)
    assert driven.outcome.widened == []
    assert driven.report.num_transferred == 0
    assert not driven.report.truncated.any()


@pytest.mark.parametrize(
    ("k_max", "num_requests", "branching", "width"),
    [(32, 1, 4, 4), (32, 4, 8, 4), (32, 5, 8, 3), (32, 8, 4, 2), (32, 9, 4, 1), (32, 64, 4, 1), (0, 1, 4, 1)],
)
def test_echo_width_follows_the_load(k_max: int, num_requests: int, branching: int, width: int) -> None:
    assert plan(Load(num_requests, 0), k_max=k_max, branching=branching).widths == (width,) * 8


def test_echo_reads_exactly_the_listed_checkpoints() -> None:
    assert plan(max_depth=5).thresholds == (0.4, None, 0.2, None, None)
    assert plan(max_depth=2).thresholds == (0.4, None)
    assert plan(max_depth=2).target_depth == 2
    unlisted = replace(PROFILE, checkpoints=PROFILE.checkpoints[:1])
    assert make_policy(PolicySettings(max_depth=3), unlisted).plan(Load(4, 0)).thresholds == (0.4, None, None)


def test_dense_reads_every_depth_that_has_a_threshold_and_none_reads_nothing() -> None:
    assert plan(gate="dense", max_depth=5).thresholds == (0.4, None, 0.2, 0.1, None)
    assert plan(gate="none", max_depth=5).thresholds == (None,) * 5


def test_single_threshold_is_the_mean_weighted_by_readings() -> None:
    assert plan(thresholds="single", max_depth=3).thresholds == pytest.approx((0.35, None, 0.35))
    unmeasured = replace(PROFILE, checkpoints=tuple(replace(row, n=0) for row in PROFILE.checkpoints))
    single = make_policy(PolicySettings(thresholds="single", max_depth=3), unmeasured).plan(Load(4, 0))
    assert single.thresholds == pytest.approx((0.3, None, 0.3))
    none_listed = replace(PROFILE, checkpoints=())
    assert make_policy(PolicySettings(thresholds="single", max_depth=1), none_listed).plan(Load(1, 0)).thresholds == (
        None,
    )


LOADED = replace(
    PROFILE,
    loads=(0.5, 2.0, 8.0),
    checkpoints=(
        Checkpoint(1, (0.6, 0.4, 0.2), None, None, None, 300),
        Checkpoint(3, (0.5, 0.3, 0.0), None, None, None, 100),
    ),
)


@pytest.mark.parametrize(
    ("num_requests", "thresholds"),
    [(64, (0.6, None, 0.5)), (32, (0.6, None, 0.5)), (31, (0.4, None, 0.3)), (9, (0.4, None, 0.3)),
     (8, (0.4, None, 0.3)), (7, (0.2, None, 0.0)), (1, (0.2, None, 0.0))],
)  # fmt: skip
def test_thresholds_are_those_of_the_nearest_load(num_requests: int, thresholds: tuple[float | None, ...]) -> None:
    """K_max 32: loads of 0.5, 1 (as near to 0.5 as to 2), just above 1, 3.6, 4 (as near to 2 as to 8), 4.6 and 32."""
    policy = make_policy(PolicySettings(max_depth=3), LOADED)
    assert policy.plan(Load(num_requests, 0)).thresholds == thresholds


def test_every_gate_reads_by_load() -> None:
    single = make_policy(PolicySettings(thresholds="single", max_depth=3), LOADED)
    assert [single.plan(Load(count, 0)).thresholds[0] for count in (64, 1)] == pytest.approx([0.575, 0.15])
    dense = make_policy(PolicySettings(gate="dense", max_depth=4), LOADED)
    assert [dense.plan(Load(count, 0)).thresholds for count in (64, 1)] == [
        (0.6, None, 0.5, 0.1),
        (0.2, None, 0.0, 0.1),
    ]


def test_the_random_gate_learns_each_load_apart() -> None:
    """Confidence 0.5: the sparse gate would truncate everybody of sixty-four, and nobody alone."""
    policy = make_policy(PolicySettings(gate="random", max_depth=1, price="off"), LOADED)
    for count in (64, 1):
        load, everybody = Load(count, 0), np.arange(count)
        allocation = Allocation(policy.plan(load), np.ones(count, np.int64))
        allocation.grant(Offers(everybody, np.full(count, ROOT), everybody, np.full(count, math.log(0.5))))
        policy.observe(load, Feedback(allocation.report))
    rates = [policy.plan(Load(count, 1)).truncation_rates for count in (64, 1)]
    assert rates == [(1.0,), (0.0,)]


def test_settings_reach_the_plan() -> None:
    assert plan(transfer="on").shares is None
    assert plan(Load(3, 0), transfer="off", k_max=8).shares == (3, 3, 2)
    assert plan(widen="on").widen
    assert not plan(widen="off").widen
    assert plan(widen_scope="truncation").widen_scope == "truncation"
    assert plan(gate_scope="branch").gate_scope == "branch"
    assert plan(Load(4, 7), seed=3).random_key == (3, 7)


def test_nobody_decoding_is_no_special_case() -> None:
    for policy in ("off", "static", "table", "dynamic", "goodput", "echo"):
        for transfer in ("on", "off"):
            assert drive(plan(Load(0, 0), policy=policy, transfer=transfer), [], bushy(2)).outcome.num_nodes == []


def test_ungated_growth_is_best_first_to_the_last_depth() -> None:
    driven = drive(plan(Load(2, 0), gate="none", k_max=12, max_depth=6, branching=1), [8, 8], bushy(1))
    assert driven.outcome.num_nodes == [6, 6]
    assert not driven.report.truncated.any()


@pytest.mark.parametrize("name", ["k_max", "max_depth", "branching", "seed"])
def test_settings_out_of_range_are_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        PolicySettings(**{name: -1})


def test_unknown_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown policy 'magic'"):
        make_policy(PolicySettings(policy="magic"), PROFILE)  # type: ignore[arg-type]


def truncation_rates(gate: str, num_steps: int) -> dict[int, float]:
    """Truncations per reading at each checkpoint, over steps with plenty of budget."""
    policy = make_policy(PolicySettings(gate=gate, k_max=10_000, branching=2), PROFILE)  # type: ignore[arg-type]
    read, truncated = {1: 0, 3: 0}, {1: 0, 3: 0}
    for step in range(num_steps):
        driven = drive(policy.plan(Load(4, step)), [4] * 4, scattered(step, max_children=2))
        policy.observe(Load(4, step), Feedback(driven.report))
        for _, depth, _, _, let_through in driven.outcome.readings:
            if depth in read:
                read[depth] += 1
                truncated[depth] += not let_through
    return {depth: truncated[depth] / read[depth] for depth in read}


def test_random_gate_truncates_as_often_as_the_sparse_gate_but_not_the_same() -> None:
    sparse, chance = truncation_rates("sparse", 600), truncation_rates("random", 600)
    assert min(sparse.values()) > 0.05
    assert chance == pytest.approx(sparse, abs=0.05)


def test_random_gate_knows_no_confidence() -> None:
    policy = make_policy(PolicySettings(gate="random", k_max=1000, branching=2), PROFILE)
    confidences: dict[bool, list[float]] = {True: [], False: []}
    for step in range(600):
        driven = drive(policy.plan(Load(4, step)), [1] * 4, scattered(step, max_children=2))
        policy.observe(Load(4, step), Feedback(driven.report))
        for _, _, confidence, _, let_through in driven.outcome.readings:
            confidences[let_through].append(confidence)
    means = [sum(values) / len(values) for values in confidences.values()]
    assert means[0] == pytest.approx(means[1], abs=0.05)


def test_random_gate_starts_open_and_repeats_itself() -> None:
    first = plan(gate="random")
    assert first.truncation_rates == (0.0,) * 8
    assert truncation_rates("random", 40) == truncation_rates("random", 40)
