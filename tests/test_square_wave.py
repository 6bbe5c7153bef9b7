"""A load that jumps up and down: K_max and depth follow it, and do not flap in between."""

import itertools
from dataclasses import replace

import pytest

from echo_sched.scheduler.cost import CostTable, DraftingCost
from echo_sched.scheduler.economy import HOLD_STEPS, PROBE_LENGTH, PROBE_STEPS
from echo_sched.scheduler.gains import FIRST_TREES
from echo_sched.scheduler.plan import Feedback, Load
from echo_sched.scheduler.policy import PolicySettings, make_policy
from echo_sched.scheduler.starting_values import BUILT_IN_PROFILES
from tests.allocation_twin import drive, scattered

LOW, HIGH, HALF_WAVE = 4, 32, 20
K_MAX = 64
STEPS = 12 * 2 * HALF_WAVE
# Nodes are nearly free up to 16 rows, and dear from 48 on: few requests draft, many hardly do.
TIERS = CostTable(
    (1, 8, 16, 24, 32, 48, 64, 96),
    (0,),
    ((1.0,), (1.05,), (1.1,), (1.5,), (1.9,), (2.8,), (3.7,), (5.5,)),
    DraftingCost.constant(0.05),
    {},
)

Budget = tuple[int, int]  # K_max and the deepest node that it leaves, of one step


def square_wave(policy_name: str) -> tuple[list[Budget], list[int]]:
    """Batches of LOW and HIGH in turn, with drafts of random worth. Budgets, and the steps that were probes."""
    settings = PolicySettings(policy=policy_name, k_max_rule="auto", k_max=K_MAX)  # type: ignore[arg-type]
    policy = make_policy(settings, replace(BUILT_IN_PROFILES["eagle3"], cost=TIERS))
    budgets, probes = [], []
    for step in range(STEPS):
        num_requests = HIGH if step // HALF_WAVE % 2 else LOW
        load = Load(num_requests, step)
        plan = policy.plan(load)
        policy.observe(load, Feedback(drive(plan, [8] * num_requests, scattered(step)).report))
        budgets.append((plan.k_max, plan.max_depth))
        probes += [step] * policy._economy._planned.probe  # type: ignore[attr-defined]
    return budgets, probes


def without_probes(budgets: list[Budget], probes: list[int]) -> list[Budget]:
    """In the probes' place, the budget of the step before, or where a wave begins that of the first step after."""
    steady = list(budgets)
    for step in probes:
        after = next((later for later in range(step, STEPS) if later not in probes), step)
        steady[step] = steady[step - 1] if step % HALF_WAVE else budgets[after]
    return steady


def wave_of(step: int) -> int:
    return step // HALF_WAVE


@pytest.mark.parametrize("policy_name", ["echo", "goodput", "dynamic", "static"])
def test_budgets_follow_a_square_wave_and_do_not_flap(policy_name: str) -> None:
    """A batch that jumps may change the budget at once; within a half-wave HOLD_STEPS pass between two changes."""
    budgets, probes = square_wave(policy_name)
    steady = without_probes(budgets, probes)
    changes = [step for step in range(1, STEPS) if steady[step] != steady[step - 1]]
    assert changes, "the load must be answered at all, or the test says nothing"
    for wave in range(STEPS // HALF_WAVE):
        # The jump itself counts as a change: from it on, as from any, the budget is held. First nothing is known yet.
        jump = max(wave * HALF_WAVE, FIRST_TREES // LOW)
        inside = [jump, *(step for step in changes if wave_of(step) == wave and step > jump)]
        gaps = [later - earlier for earlier, later in itertools.pairwise(inside)]
        assert all(gap >= HOLD_STEPS for gap in gaps), (wave, inside)
    begun = [step for step in probes if step - 1 not in probes]
    assert begun and all(later - earlier >= PROBE_STEPS for earlier, later in itertools.pairwise(begun))
    assert len(probes) <= PROBE_LENGTH * STEPS // PROBE_STEPS
    assert all(k_max <= K_MAX for k_max, _ in budgets)


def test_the_wave_is_answered_by_drafting_less_when_many_are_served() -> None:
    steady = without_probes(*square_wave("goodput"))
    half = STEPS // 2  # what drafts are worth is known by then
    low, high = (
        [k_max / size for step, (k_max, _) in enumerate(steady) if step >= half and wave_of(step) % 2 == phase]
        for phase, size in ((0, LOW), (1, HIGH))
    )
    assert sum(low) / len(low) > 2 * sum(high) / len(high)
