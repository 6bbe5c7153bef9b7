"""Explored steps, what they say about the gate, and thresholds that follow them."""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_sched.scheduler.adapt import REFIT_READINGS, Adaptation, refit
from echo_sched.scheduler.cost import CostTable, DraftingCost
from echo_sched.scheduler.drift import MIN_READINGS, WINDOW, Column, Drift, auc_error, calibration_error
from echo_sched.scheduler.explore import explores, ungated
from echo_sched.scheduler.plan import AllocationReport, Load, Plan
from echo_sched.scheduler.policy import PolicySettings, make_policy
from echo_sched.scheduler.profile import Checkpoint, Profile
from echo_sched.scheduler.separation import auc
from echo_sched.scheduler.starting_values import BUILT_IN_PROFILES
from tests.allocation_twin import drive, scattered

PROFILE = replace(
    BUILT_IN_PROFILES["ngram"],
    checkpoints=(Checkpoint(1, (0.4,), 0.75, 0.7, 0.8, 300), Checkpoint(3, (0.2,), None, None, None, 100)),
)
RANDOM = np.random.default_rng(5)


def echo_plan(load: Load, k_max: int, **changes: object) -> Plan:
    return make_policy(PolicySettings(k_max=k_max, **changes), PROFILE).plan(load)  # type: ignore[arg-type]


# -- explored steps --


def test_the_share_of_steps_that_explores_is_as_set_and_always_the_same_steps() -> None:
    explored = [step for step in range(20_000) if explores(0.01, 7, step)]
    assert 170 < len(explored) < 230
    assert explored == [step for step in range(20_000) if explores(0.01, 7, step)]
    assert explored != [step for step in range(20_000) if explores(0.01, 8, step)]
    assert not any(explores(0.0, 0, step) for step in range(1000))
    assert all(explores(1.0, 0, step) for step in range(1000))


@settings(max_examples=100)
@given(st.integers(1, 70), st.integers(1, 12), st.integers(0, 500), st.sampled_from(["request", "branch"]))
def test_an_explored_step_selects_nobody_by_confidence_and_spends_no_more_than_k_max(
    k_max: int, num_requests: int, seed: int, scope: str
) -> None:
    load = Load(num_requests, seed)
    plan = ungated(echo_plan(load, k_max, gate_scope=scope), load, seed=1)
    driven = drive(plan, [20] * num_requests, scattered(seed))
    report = driven.report
    assert plan.explored and report.num_nodes.sum() <= plan.k_max == k_max
    assert not report.truncated.any() and not report.num_widened.any()
    # Whoever was drawn has nodes wherever it had offers, so that what was read was also put to the test.
    for request, depth in zip(report.readings.request.tolist(), report.readings.depth.tolist(), strict=True):
        assert depth in driven.trees[request].depths
    assert plan.max_depth == min(3, k_max)


def test_who_is_drawn_has_nothing_to_do_with_arrival() -> None:
    """K_max 24 pays for four full trees (two wide, three deep) of six requests."""
    drawn = np.zeros(6)
    for step in range(600):
        load = Load(6, step)
        plan = ungated(echo_plan(load, 24), load, seed=0)
        assert plan.shares is not None and set(plan.shares) == {0, 6} and sum(plan.shares) == 24
        drawn += np.array(plan.shares) > 0
    assert drawn.sum() == 2400 and drawn.min() > 350


def test_a_probes_few_requests_do_not_narrow_the_lot() -> None:
    load = Load(6, 0)
    plan = replace(echo_plan(load, 24), max_drafting=1)
    assert ungated(plan, load, seed=0).max_drafting is None


@pytest.mark.parametrize(("stretch", "depth"), [(0.1, 2), (0.05, 1), (0.5, 3), (0.01, 0)])
def test_an_explored_step_keeps_the_bound_on_its_time(stretch: float, depth: int) -> None:
    """A plain step takes a second, a node 0.01, a level 0.03: as deep as d levels leave room for d nodes."""
    load = Load(4, 0)
    cost = CostTable((4, 104), (0,), ((1.0,), (2.0,)), DraftingCost.constant(0.03), {})
    policy = make_policy(PolicySettings(k_max=32, max_step_stretch=stretch), replace(PROFILE, cost=cost))
    plan = ungated(policy.plan(load), load, seed=0)
    assert (plan.max_depth if plan.explored else 0) == depth
    if depth:
        assert plan.shares is not None and 0 < sum(plan.shares) <= round(100 * stretch) - 3 * depth


@pytest.mark.parametrize("changes", [{"gate": "none"}, {"policy": "goodput"}, {"policy": "off"}, {"k_max": 0}])
def test_where_no_gate_reads_or_no_node_is_allowed_nothing_is_explored(changes: dict[str, object]) -> None:
    load = Load(4, 0)
    plan = make_policy(PolicySettings(**changes), PROFILE).plan(load)  # type: ignore[arg-type]
    assert ungated(plan, load, seed=0) is plan


# -- what they say --


def step(confidences: Sequence[float]) -> AllocationReport:
    """An explored step one level deep, in which request i is offered one node of that probability."""
    plan = Plan(len(confidences), 1, 1, (1,), (None,), explored=True)
    return drive(plan, [5] * len(confidences), lambda request, path: [(1, confidences[request])]).report


def feed(drift: Drift, num_readings: int, separation: float) -> None:
    """Steps of eight requests whose confidence says as much about acceptance as `separation` (0: nothing)."""
    for _ in range(num_readings // 8):
        accepted = RANDOM.random(8) < 0.5
        drift.observe(
            {1: 0.4}, step(list(np.clip(RANDOM.normal(0.5 + separation * accepted, 0.1), 0.01, 1.0))), accepted
        )


def test_live_auc_and_acceptance_are_those_of_the_readings_in_the_window() -> None:
    drift, confidences, labels = Drift(PROFILE), [], []
    for _ in range(100):
        accepted = RANDOM.random(8) < 0.4
        confidence = np.clip(RANDOM.normal(0.4 + 0.2 * accepted, 0.15), 0.01, 1.0)
        drift.observe([1], step(list(confidence)), accepted.astype(int).tolist())
        confidences.append(np.exp(np.log(confidence)))
        labels.append(accepted)
    found = drift.depths[0]
    inside = np.concatenate(confidences)[-WINDOW:], np.concatenate(labels)[-WINDOW:]
    assert (found.depth, found.num_readings) == (1, WINDOW)
    assert found.auc == pytest.approx(auc(*inside)) and found.acceptance == pytest.approx(inside[1].mean())
    assert found.calibration_error == pytest.approx(calibration_error(*inside))
    assert drift.columns[1].num_seen == 800


def test_the_label_is_that_the_accepted_path_reaches_the_depth() -> None:
    plan = Plan(12, 3, 3, (1, 1, 1), (None,) * 3, explored=True)
    report = drive(plan, [5] * 4, lambda request, path: [(1, 0.9)]).report
    drift = Drift(PROFILE)
    drift.observe([1, 3], report, [0, 1, 2, 3])
    assert [(found.depth, found.acceptance) for found in drift.depths] == [(1, 0.75), (3, 0.25)]
    assert drift.columns[3].chance == pytest.approx([0.9**3] * 4)


def test_calibration_error_is_how_far_chances_are_from_what_happens() -> None:
    half = np.array([True, False] * 50)
    assert calibration_error(np.full(100, 0.5), half) == pytest.approx(0.0)
    assert calibration_error(np.full(100, 0.9), np.zeros(100, np.bool_)) == pytest.approx(0.9)
    # right on average, wrong at both ends
    assert calibration_error(np.where(half, 0.25, 0.75), half) == pytest.approx(0.75)


def test_the_error_of_an_auc_is_what_repeated_draws_spread_by() -> None:
    draws = []
    for _ in range(400):
        accepted = RANDOM.random(256) < 0.4
        draws.append(auc(RANDOM.normal(0.8 * accepted, 1.0), accepted))
    assert auc_error(float(np.mean(draws)), 102, 154) == pytest.approx(np.std(draws), rel=0.2)


def test_the_log_hears_once_that_the_auc_has_left_the_profile_and_once_that_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "echo_sched")
    drift = Drift(PROFILE)
    feed(drift, 2 * WINDOW, separation=0.09)  # an AUC of about 0.75, as calibrated
    assert not drift.depths[0].drifted and caplog.records == []
    feed(drift, 2 * WINDOW, separation=0.0)
    assert drift.depths[0].drifted and [record.levelname for record in caplog.records] == ["WARNING"]
    assert "depth 1" in caplog.text and "[0.70, 0.80]" in caplog.text
    feed(drift, 2 * WINDOW, separation=0.09)
    assert not drift.depths[0].drifted and [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_few_readings_and_profiles_without_an_interval_raise_no_alarm(caplog: pytest.LogCaptureFixture) -> None:
    few, unmeasured = Drift(PROFILE), Drift(BUILT_IN_PROFILES["ngram"])
    feed(few, MIN_READINGS - 8, separation=0.0)
    feed(unmeasured, WINDOW, separation=0.0)
    assert caplog.records == [] and not few.depths[0].drifted and not unmeasured.depths[0].drifted
    assert unmeasured.depths[0].profile_auc is None and unmeasured.depths[0].auc == pytest.approx(0.5, abs=0.1)


# -- thresholds that follow --


def column(cut: float, num_readings: int, later_cut: float | None = None) -> Column:
    """Accepted iff confidence is above `cut`, in the newer half iff above `later_cut` (below it, if negative)."""
    confidence = RANDOM.random(num_readings)
    accepted = confidence > cut
    if later_cut is not None:
        newer = np.arange(num_readings) >= num_readings // 2
        accepted = np.where(newer, confidence < later_cut, accepted)
    made = Column()
    made.add(confidence, confidence, accepted)
    return made


def test_a_refit_is_calibrations_rule_and_must_hold_on_newer_readings() -> None:
    assert refit(column(0.6, WINDOW)) == pytest.approx(0.6, abs=0.02)
    assert refit(column(0.6, WINDOW, later_cut=0.6)) is None  # confidence says the opposite by now
    assert refit(column(1.0, WINDOW)) is None  # nothing is accepted


def test_a_depth_is_looked_at_once_per_so_many_readings() -> None:
    adaptation, watched = Adaptation(), Column()
    changes = []
    for count in range(1, 3 * REFIT_READINGS + 1):
        confidence = RANDOM.random(1)
        watched.add(confidence, confidence, confidence > 0.3)
        changes += [(count, *adaptation.refits({2: watched}))]
    assert [change for change in changes if len(change) > 1] == [(REFIT_READINGS * k, 2) for k in (1, 2, 3)]


def test_a_profile_is_never_written_to() -> None:
    before: Profile = replace(PROFILE)
    feed(Drift(PROFILE), WINDOW, separation=0.0)
    assert before == PROFILE
