"""The economy: K_max from what drafts were worth and cost; steady, at most as set, 0 where drafts do not pay."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_sched.scheduler.cost import CostTable, DraftingCost
from echo_sched.scheduler.economy import HOLD_STEPS, PROBE_LENGTH, PROBE_NODES, PROBE_STEPS, Budget, Economy
from echo_sched.scheduler.gains import FIRST_TREES
from echo_sched.scheduler.plan import Feedback, Load, Plan
from echo_sched.scheduler.policy import PolicySettings, make_policy
from echo_sched.scheduler.profile import Profile
from echo_sched.scheduler.seen import Seen
from echo_sched.scheduler.starting_values import BUILT_IN_PROFILES
from tests.allocation_twin import Children, drive, scattered

FREE = CostTable(
    (1, 256), (0,), ((1.0,), (1.0,)), DraftingCost.constant(0.0), {}
)  # the forward takes as long whatever is in it
DEAR = CostTable((1, 200), (0,), ((1.0,), (200.0,)), DraftingCost.constant(0.1), {})  # in proportion
STAIRS = CostTable(
    (1, 8, 9, 16, 17, 256),
    (0, 1000),
    ((1.0, 1.0), (1.1, 1.2), (3.0, 3.0), (3.0, 3.0), (9.0, 9.0), (9.0, 9.0)),
    DraftingCost.constant(0.02),
    {},
)


def priced(cost: CostTable | None) -> Profile:
    return replace(BUILT_IN_PROFILES["eagle3"], cost=cost)


def sure(request: int, path: tuple[int, ...]) -> list[tuple[int, float]]:
    return [(1, 0.9), (2, 0.05)]


def run(cost: CostTable, num_requests: int, num_steps: int, children: Children = sure, **changes: Any) -> list[int]:
    """K_max of each step of a policy that is driven with a drafter such as `children`."""
    chosen = PolicySettings(**{"policy": "goodput", "k_max_rule": "auto", "k_max": 40, **changes})
    policy = make_policy(chosen, priced(cost))
    found = []
    for step in range(num_steps):
        load = Load(num_requests, step)
        plan = policy.plan(load)
        found.append(plan.k_max)
        policy.observe(load, Feedback(drive(plan, [20] * num_requests, children).report))
    return found


def test_where_verification_is_free_all_of_k_max_is_planned() -> None:
    assert set(run(FREE, 4, 30, live_costs="off")) == {40}


def test_plain_decoding_is_tried_now_and_then_where_costs_are_learned() -> None:
    assert set(run(FREE, 4, 4 * PROBE_STEPS, live_costs="off")) == {40}
    found = run(FREE, 4, 8 * PROBE_STEPS)
    plain = [step for step, k_max in enumerate(found) if k_max == 0]
    assert set(found) == {0, 40} and len(plain) == 2 and plain[0] == FIRST_TREES // 4 + PROBE_STEPS


def test_where_drafts_do_not_pay_k_max_is_zero_but_for_probes() -> None:
    found = run(DEAR, 4, 8 * PROBE_STEPS)
    first = FIRST_TREES // 4  # steps until anything is known
    assert set(found[:first]) == {40}
    tried = [step for step, k_max in enumerate(found) if k_max and step >= first]
    assert {found[step] for step in tried} == {PROBE_NODES}
    begun = tried[::PROBE_LENGTH]
    assert len(tried) == 3 * PROBE_LENGTH
    assert np.diff(begun).tolist() == [2 * PROBE_STEPS + PROBE_LENGTH - 1, 4 * PROBE_STEPS + PROBE_LENGTH - 1]


def test_a_probe_drafts_for_few_requests_and_learns_what_all_would_gain() -> None:
    """Sure drafts, on a machine that turns cheap: found out by one request of eight."""
    economy = Economy(PolicySettings(k_max=40), priced(DEAR))
    policy = make_policy(PolicySettings(policy="goodput", k_max=40, price="off"), priced(FREE))
    budgets = []
    for step in range(3 * PROBE_STEPS):
        load = Load(8, step)
        budget = economy.budget(load)
        budgets.append(budget)
        caps = [20] * (budget.max_drafting or 8) + [0] * (0 if budget.max_drafting is None else 7)
        plan = replace(policy.plan(load), k_max=budget.k_max)
        economy.observe(load, Feedback(drive(plan, caps, sure).report))
    assert {budget for budget in budgets[FIRST_TREES // 8 :] if budget.k_max} == {Budget(PROBE_NODES, 1, probe=True)}
    tokens, _ = economy._gains.of(np.array([8.0]), 8)
    assert tokens == pytest.approx(8 * 0.9, abs=0.08)  # one node per request


def test_what_the_drafter_missed_must_be_earned_back() -> None:
    """The same gain and costs: paid for where the drafter is up to date, not where it has everything to catch up on."""
    feeding = replace(FREE, drafting=DraftingCost((1,), (0.0,), (1,), (0.0,), 0.01))
    chosen = []
    for num_missed in (0, 100):
        economy = Economy(PolicySettings(k_max=40), priced(feeding))
        policy = make_policy(PolicySettings(policy="goodput", k_max=40, price="off"), priced(FREE))
        nothing = drive(Plan(0, 0, 0, (), ()), [20] * 4, sure).report
        first = Load(4, 0, num_cached_tokens=100_000)
        economy.budget(first)
        for _ in range(FIRST_TREES // 4):
            economy.observe(first, Feedback(drive(policy.plan(first), [20] * 4, sure).report))
        for _ in range(num_missed):
            economy.observe(first._replace(num_prompt_tokens=500), Feedback(nothing))
        chosen.append(economy.budget(first._replace(step=PROBE_STEPS - 1)).k_max)
    assert chosen[0] > 0 == chosen[1]


def test_to_begin_drafting_takes_a_clear_gain_also_at_the_start() -> None:
    """A sure node is worth 2 % of a step: enough to go on with, and too little to begin with."""
    narrow = CostTable((1, 2), (0,), ((1.0,), (1.87,)), DraftingCost.constant(0.0), {})
    assert run(narrow, 1, FIRST_TREES + 1, branching=1, max_depth=1, live_acceptance="off")[-1] == 0
    cheaper = replace(narrow, seconds=((1.0,), (1.7,)))
    assert run(cheaper, 1, FIRST_TREES + 1, branching=1, max_depth=1, live_acceptance="off")[-1] > 0


def test_k_max_ends_where_the_curve_steps_up() -> None:
    """Two sure requests: 6 nodes and 2 roots are one tier, and the next tier takes three times as long."""
    assert run(STAIRS, 2, 30)[-1] == 6


def test_k_max_changes_at_most_once_per_hold_unless_the_batch_moves() -> None:
    economy = Economy(PolicySettings(policy="goodput", k_max_rule="auto", k_max=40), priced(STAIRS))
    policy = make_policy(PolicySettings(policy="goodput", k_max_rule="auto", k_max=40), priced(STAIRS))
    report = drive(policy.plan(Load(2, 0)), [20] * 2, sure).report
    changes = []
    previous = economy.budget(Load(2, 0)).k_max
    for step in range(1, 400):
        flickering = replace(report, seen=report.seen if step % 3 else Seen.concat([]))
        economy.observe(Load(2, step), Feedback(flickering))
        k_max = economy.budget(Load(2, step + 1)).k_max
        if k_max not in (previous, 0, min(2 * previous, 40)):  # those are probes
            changes.append(step)
            previous = k_max
    assert all(later - earlier >= HOLD_STEPS for earlier, later in pairwise(changes))


def test_a_batch_that_moves_by_a_quarter_is_answered_at_once() -> None:
    economy = Economy(PolicySettings(policy="goodput", k_max_rule="auto", k_max=40), priced(STAIRS))
    policy = make_policy(PolicySettings(policy="goodput", k_max=40), priced(STAIRS))
    for step in range(20):
        economy.budget(Load(2, step))
        economy.observe(Load(2, step), Feedback(drive(policy.plan(Load(2, step)), [20] * 2, sure).report))
    before = economy.budget(Load(2, 20)).k_max
    assert economy.budget(Load(4, 21)).k_max != before == 6


def test_without_a_cost_curve_there_is_no_economy() -> None:
    for changes in ({}, {"price": "off"}):
        economy = Economy(PolicySettings(k_max_rule="auto", k_max=7, **changes), priced(None if not changes else FREE))  # type: ignore[arg-type]
        assert economy.price(Load(3, 0), 7) is None
    assert Economy(PolicySettings(k_max_rule="auto", k_max=7), priced(None)).budget(Load(3, 0)).k_max == 7


def test_without_a_price_k_max_is_as_set() -> None:
    assert set(run(DEAR, 4, 40, price="off")) == {40}


def test_prompt_chunks_and_cached_tokens_are_in_the_price() -> None:
    economy = Economy(PolicySettings(), priced(STAIRS))
    price = economy.price(Load(2, 0, num_prompt_tokens=4, num_cached_tokens=500), 3)
    assert price is not None
    alone, beside = 1 + 0.15 * 1 / 7, [1 + 0.15 * 5 / 7, 1 + 0.15 * 6 / 7, 1.15, 3.0]  # 2 roots; 6 to 9 tokens
    assert price.verify_seconds == pytest.approx([alone + seconds - beside[0] for seconds in beside])
    assert price.prompt_seconds == pytest.approx(beside[0] - alone)
    assert price.base_tokens == 2.0


@settings(max_examples=60)
@given(
    st.sampled_from(["static", "dynamic", "echo", "goodput"]),
    st.integers(0, 50),
    st.lists(st.integers(0, 12), min_size=1, max_size=40),
    st.sampled_from([FREE, DEAR, STAIRS]),
    st.integers(0, 1000),
)
def test_no_policy_under_any_load_exceeds_the_k_max_that_was_set(
    name: str, k_max: int, batches: list[int], cost: CostTable, seed: int
) -> None:
    policy = make_policy(PolicySettings(policy=name, k_max_rule="auto", k_max=k_max), priced(cost))  # type: ignore[arg-type]
    for step, num_requests in enumerate(batches):
        load = Load(num_requests, step, num_prompt_tokens=step % 5, num_cached_tokens=10 * step)
        plan = policy.plan(load)
        driven = drive(plan, [5] * num_requests, scattered(seed + step))
        assert sum(driven.outcome.num_nodes) <= plan.k_max <= k_max
        policy.observe(load, Feedback(driven.report))


def test_the_curve_of_a_table_is_its_own_reading() -> None:
    for context in (0.0, 10.0, 999.0, 5000.0):
        curve = STAIRS.curve(1, 600, context)
        assert curve == pytest.approx([STAIRS.seconds_for(n, context) for n in range(1, 601)])


@given(st.floats(0, 3000), st.integers(1, 5), st.integers(1, 4), st.integers(0, 1000))
def test_all_tiers_are_read_at_once_as_each_is_alone(cached: float, num_tiers: int, num_loads: int, seed: int) -> None:
    numbers = np.random.default_rng(seed)
    at = sorted(numbers.choice(2000, num_loads, replace=False).tolist())
    seconds = 0.1 + numbers.random((num_tiers, num_loads))
    table = CostTable(
        tuple(range(1, num_tiers + 1)), tuple(at), tuple(map(tuple, seconds.tolist())), DraftingCost.constant(0.0), {}
    )
    for tier, row in enumerate(seconds, start=1):
        slope = max(0.0, (row[-1] - row[0]) / (at[-1] - at[0])) if num_loads > 1 else 0.0
        expected = np.interp(cached, at, row) + slope * max(0.0, cached - at[-1])
        assert table.seconds_for(tier, cached) == pytest.approx(expected)
