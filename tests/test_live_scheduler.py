"""The scheduler of a running engine: what the policy hears of, what may be set, and what is counted."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from echo_sched.scheduler.adapt import REFIT_READINGS
from echo_sched.scheduler.cost import CostTable, DraftingCost
from echo_sched.scheduler.explore import explores
from echo_sched.scheduler.live import LiveScheduler
from echo_sched.scheduler.plan import Feedback, Load, Plan
from echo_sched.scheduler.policy import PolicySettings, make_policy
from echo_sched.scheduler.profile import Checkpoint
from echo_sched.scheduler.starting_values import BUILT_IN_PROFILES
from tests.allocation_twin import drive

PROFILE = replace(
    BUILT_IN_PROFILES["ngram"],
    checkpoints=(Checkpoint(1, (0.4,), 0.75, 0.7, 0.8, 300), Checkpoint(3, (0.2,), None, None, None, 100)),
)


class Notes:
    """A policy that plans what echo plans and writes down what it hears."""

    name = "notes"

    def __init__(self, **settings: Any) -> None:
        self._echo = make_policy(PolicySettings(**settings), PROFILE)
        self.heard: list[int] = []
        self.explored: list[int] = []

    def plan(self, load: Load) -> Plan:
        return self._echo.plan(load)

    def observe(self, load: Load, feedback: Feedback) -> None:
        self.heard.append(load.step)
        self.explored += [load.step] * feedback.explored


def scheduler(policy: Any = None, *, explore: float = 0.0, adapt: bool = False) -> LiveScheduler:
    chosen = make_policy(PolicySettings(), PROFILE) if policy is None else policy
    return LiveScheduler(chosen, PROFILE, explore=explore, adapt=adapt, seed=3)


def run(live: LiveScheduler, num_steps: int, num_requests: int = 4, cut: float = 0.5) -> list[Plan]:
    """Steps in which a request of confidence above `cut` has its whole tree accepted, and no other anything."""
    random, plans = np.random.default_rng(1), []
    for step in range(num_steps):
        load = Load(num_requests, step)
        plan, sure = live.plan(load), random.random(num_requests)
        report = drive(plan, [9] * num_requests, lambda request, path: [(1, sure[request])]).report  # noqa: B023
        live.observe(load, plan, Feedback(report, [9 if confidence > cut else 0 for confidence in sure]))
        plans.append(plan)
    return plans


def test_the_policy_hears_of_every_step_and_which_were_explored() -> None:
    policy = Notes()
    live = scheduler(policy, explore=0.1)
    plans = run(live, 300)
    explored = [step for step in range(300) if explores(0.1, 3, step)]
    assert [step for step, plan in enumerate(plans) if plan.explored] == explored != []
    assert policy.heard == list(range(300)) and policy.explored == explored
    assert (live.state.num_steps, live.state.num_explored) == (300, len(explored))
    assert [found.depth for found in live.state.drift] == [1, 3] and live.state.drift[0].auc == 1.0


@pytest.mark.parametrize("k_max", [3, 8, 32])
def test_the_live_auc_is_that_of_all_requests_whatever_gate_and_budget_would_select(k_max: int) -> None:
    """Confidence uniform and as likely right as it says: an AUC of 5/6. Of those a gate at 0.6 lets pass, 0.6."""
    strict = replace(PROFILE, checkpoints=(Checkpoint(1, (0.6,), None, None, None, 300),))
    policy = make_policy(PolicySettings(k_max=k_max), strict)
    live, random = LiveScheduler(policy, strict, explore=1.0, adapt=False, seed=3), np.random.default_rng(2)
    for step in range(1200):
        load, sure = Load(6, step), random.random(6)
        plan = live.plan(load)
        report = drive(plan, [9] * 6, lambda request, path: [(1, sure[request])]).report  # noqa: B023
        live.observe(load, plan, Feedback(report, (random.random(6) < sure).astype(int).tolist()))
    (found,) = live.state.drift
    assert found.auc == pytest.approx(5 / 6, abs=0.04) and found.acceptance == pytest.approx(0.5, abs=0.05)
    assert found.calibration_error < 0.1


def test_without_exploring_nothing_is_read_and_plans_are_the_policys_own() -> None:
    live, policy = scheduler(), make_policy(PolicySettings(), PROFILE)
    assert run(live, 50) == [policy.plan(Load(4, step)) for step in range(50)]
    assert live.state.num_explored == 0 and live.state.drift == ()


def test_thresholds_that_were_set_stand_in_the_profiles_place_until_the_next_change() -> None:
    live, policy = scheduler(), make_policy(PolicySettings(), PROFILE)
    live.change(policy, {1: 0.9, 2: 0.3, 3: None, 60: 0.1}, explore=0.0, adapt=False)
    assert live.plan(Load(4, 0)).thresholds == (0.9, 0.3, *(None,) * 6)
    assert live.state.thresholds == {1: 0.9, 2: 0.3}
    live.change(policy, {}, explore=0.0, adapt=False)
    assert live.plan(Load(4, 1)).thresholds == (0.4, None, 0.2, *(None,) * 5)


def test_thresholds_may_be_set_where_the_profile_lists_none() -> None:
    unlisted = replace(PROFILE, checkpoints=())
    live = LiveScheduler(make_policy(PolicySettings(), unlisted), unlisted, explore=0.0, adapt=False, seed=0)
    live.change(live.policy, {2: 0.3}, explore=0.0, adapt=False)
    assert live.plan(Load(4, 0)).thresholds == (None, 0.3, *(None,) * 6)


def test_a_plan_without_a_gate_gets_none() -> None:
    live = scheduler()
    live.change(make_policy(PolicySettings(policy="goodput"), PROFILE), {1: 0.9}, explore=1.0, adapt=False)
    plan = live.plan(Load(4, 0))
    assert set(plan.thresholds) == {None} and not plan.explored


@pytest.mark.parametrize("adapt", [False, True])
def test_thresholds_follow_what_is_seen_if_asked(adapt: bool) -> None:
    live = scheduler(explore=1.0, adapt=adapt)
    run(live, REFIT_READINGS // 2 - 1, cut=0.7)  # K_max pays for two full trees a step
    assert live.state.num_refits == 0
    run(live, 1, cut=0.7)
    assert live.state.num_refits == (2 if adapt else 0)
    assert live.state.set_thresholds.keys() == ({1, 3} if adapt else set())
    live.change(live.policy, live.set_thresholds, explore=0.0, adapt=adapt)
    first = live.plan(Load(4, 0)).thresholds[0]
    assert first == (pytest.approx(0.7, abs=0.03) if adapt else 0.4)


def test_readings_outlive_a_change_of_policy_and_changes_are_counted() -> None:
    live = scheduler(explore=1.0)
    run(live, 20)
    before = live.state.drift
    live.change(make_policy(PolicySettings(policy="off"), PROFILE), {}, explore=1.0, adapt=False)
    run(live, 20)
    assert live.state.drift == before and live.state.policy == "off"
    assert (live.state.num_policy_changes, live.state.num_k_max_changes, live.state.num_steps) == (1, 1, 40)


def test_the_shift_of_chances_is_shown_by_depth_while_they_have_one() -> None:
    cost = CostTable((1, 100), (0,), ((1.0,), (1.1,)), DraftingCost.constant(0.01), {})
    priced = replace(PROFILE, cost=cost)
    live = LiveScheduler(make_policy(PolicySettings(), priced), priced, explore=0.0, adapt=False, seed=3)
    run(live, 40, cut=2.0)  # nothing is ever accepted
    shift = live.state.acceptance_shift
    assert sorted(shift) == list(range(1, PolicySettings().max_depth + 1)) and shift[1] < -1.0
    load = Load(4, 41)
    live.change(make_policy(PolicySettings(live_acceptance="off"), priced), {}, explore=0.0, adapt=False)
    live.observe(load, live.plan(load), Feedback(drive(live.plan(load), [9] * 4, lambda request, path: []).report))
    assert live.state.acceptance_shift == {}
