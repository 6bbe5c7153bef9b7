"""Fitting recovers what was planted in synthetic readings, and claims nothing else."""

import math
import random
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from echo_sched.scheduler.depth_fit import MIN_PROMPTS, MIN_READINGS
from echo_sched.scheduler.fit import fit
from echo_sched.scheduler.separation import auc, separation, youden_threshold
from echo_sched.types import GateReading

NO_SIGNAL = 0.5
WEAK = 0.55
STRONG = 0.85


def planted(
    auc_by_depth: dict[int, float], *, num_prompts: int = 40, num_steps: int = 25, chance: float = 0.5, seed: int = 0
) -> list[GateReading]:
    """Binormal readings: accepted confidences are shifted so that the true AUC is the planted one.

    The path goes on past each depth with `chance`; there are offers at a depth iff the path above was accepted.
    """
    generator = np.random.default_rng(seed)
    readings = []
    for prompt in range(num_prompts):
        for step in range(num_steps):
            for depth, true_auc in sorted(auc_by_depth.items()):
                accepted = bool(generator.random() < chance)
                shift = NormalDist().inv_cdf(true_auc) * math.sqrt(2)
                score = generator.normal() + (shift if accepted else 0.0)
                confidence = 1 / (1 + math.exp(-score))
                readings.append(GateReading(step, f"prompt-{prompt}", depth, confidence, accepted))
                if not accepted:
                    break
    return readings


def test_checkpoints_are_found_where_signal_was_planted_and_nowhere_else() -> None:
    truth = {1: STRONG, 2: NO_SIGNAL, 3: STRONG, 4: WEAK, 5: STRONG}
    result = fit(planted(truth, chance=0.8), max_depth=6)
    assert [checkpoint.depth for checkpoint in result.checkpoints] == [1, 3, 5]
    assert result.no_checkpoint_reason is None
    for depth in result.depths:
        assert depth.auc is not None and depth.auc_low is not None and depth.auc_high is not None
        assert depth.auc == pytest.approx(truth[depth.depth], abs=0.06)
        assert depth.auc_low < depth.auc < depth.auc_high
        assert depth.acceptance == pytest.approx(0.8, abs=0.06)


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    covered = 0
    for seed in range(40):
        (depth,) = fit(
            planted({1: 0.7}, num_prompts=30, num_steps=10, seed=seed), max_depth=2, num_resamples=300
        ).depths
        assert depth.auc_low is not None and depth.auc_high is not None
        covered += depth.auc_low <= 0.7 <= depth.auc_high
    assert covered >= 33  # 95 % of 40 is 38; fewer than 33 has a chance below 0.3 %


def test_interval_is_no_narrower_when_readings_of_a_prompt_repeat_each_other() -> None:
    independent = planted({1: 0.7}, num_prompts=20, num_steps=8)
    repeated = [
        reading._replace(step=reading.step + 8 * copy) for reading in independent for copy in range(10)
    ]  # ten times the readings, not one bit more of evidence
    widths = []
    for readings in (independent, repeated):
        (depth,) = fit(readings, max_depth=2).depths
        assert depth.auc_low is not None and depth.auc_high is not None
        widths.append(depth.auc_high - depth.auc_low)
    assert widths[1] == pytest.approx(widths[0])


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=60))
def test_auc_equals_scikit_learn_with_ties(pairs: list[tuple[int, bool]]) -> None:
    confidence = np.array([value / 7 for value, _ in pairs])
    accepted = np.array([label for _, label in pairs])
    result = auc(confidence, accepted)
    if accepted.all() or not accepted.any():
        assert result is None
    else:
        assert result == pytest.approx(roc_auc_score(accepted, confidence), abs=1e-12)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=40))
def test_threshold_has_the_best_j_of_all_cuts(pairs: list[tuple[int, bool]]) -> None:
    confidence = np.array([value / 7 for value, _ in pairs])
    accepted = np.array([label for _, label in pairs])
    threshold = youden_threshold(confidence, accepted)
    if accepted.all() or not accepted.any() or len(set(confidence)) == 1:
        assert threshold is None
        return
    assert threshold is not None
    assert confidence.min() < threshold < confidence.max()
    cuts = sorted(set(confidence))[:-1]
    best = max(separation(confidence, accepted, cut) or 0.0 for cut in cuts)
    achieved = separation(confidence, accepted, threshold)
    assert achieved is not None
    assert achieved == pytest.approx(best) or best == 0.0  # a cut that separates backwards is all there is


def test_threshold_lies_midway_between_neighbouring_confidences() -> None:
    confidence = np.array([0.1, 0.2, 0.6, 0.9])
    assert youden_threshold(confidence, np.array([False, False, True, True])) == pytest.approx(0.4)


def test_fit_depends_on_the_seed_and_the_readings_but_not_on_their_order() -> None:
    readings = planted({1: 0.7, 2: 0.7})
    shuffled = random.Random(1).sample(readings, len(readings))
    assert fit(readings, max_depth=4, seed=3) == fit(shuffled, max_depth=4, seed=3)
    assert fit(readings, max_depth=4, seed=3).depths != fit(readings, max_depth=4, seed=4).depths


def test_no_middle_depth_gives_a_reason_with_the_numbers() -> None:
    result = fit(planted({1: STRONG, 2: NO_SIGNAL, 3: STRONG}, chance=0.75), max_depth=4)
    assert result.target_depth == 3
    assert [checkpoint.depth for checkpoint in result.checkpoints] == [1, 3]
    assert result.no_checkpoint_reason is not None
    assert "depth 2: AUC 0." in result.no_checkpoint_reason and "cut 0.60" in result.no_checkpoint_reason
    assert "depth 3" not in result.no_checkpoint_reason


def test_no_checkpoint_from_few_readings_few_prompts_or_one_class() -> None:
    few_readings = fit(planted({1: 0.99}, num_prompts=MIN_READINGS - 1, num_steps=1), max_depth=3)
    few_prompts = fit(planted({1: 0.99}, num_prompts=MIN_PROMPTS - 1, num_steps=50), max_depth=3)
    one_class = fit(planted({1: 0.99}, chance=0.0), max_depth=3)
    assert few_readings.checkpoints == few_prompts.checkpoints == one_class.checkpoints == ()
    assert one_class.depths[0].auc is None and one_class.depths[0].rejection == "never accepted"
    assert (
        one_class.no_checkpoint_reason == "no middle depth was measured (the root gate is depth 1, the target depth 1)"
    )


def test_a_threshold_that_does_not_carry_over_makes_no_checkpoint() -> None:
    """All evidence sits in one prompt: whichever half holds it, the other half cannot confirm the threshold."""
    readings = [
        GateReading(step, f"prompt-{prompt}", 1, 0.5, step % 2 == 0) for prompt in range(20) for step in range(10)
    ]
    readings += [GateReading(step, "rich", 1, 0.9 if step % 2 else 0.1, step % 2 == 1) for step in range(2000)]
    result = fit(readings, max_depth=3, auc_cut=0.5)
    assert result.checkpoints == ()


def test_target_and_typical_depth_follow_the_accepted_paths() -> None:
    # 10 steps: all reach 1, 6 reach 2, 3 reach 3, 1 reaches 4: the mean accepted depth is 2.
    readings = [
        GateReading(step, f"prompt-{step}", depth, 0.5, depth <= reached)
        for step, reached in enumerate([1] * 4 + [2] * 3 + [3] * 2 + [4])
        for depth in range(1, min(reached + 1, 5) + 1)
    ]
    result = fit(readings, max_depth=8)
    assert result.target_depth == 3
    assert result.typical_depth == pytest.approx(2.0)
    assert fit(readings, max_depth=3).target_depth == 2  # below D_max, so that there is something to deepen into
    never = [reading._replace(accepted=False) for reading in readings]
    assert (fit(never, max_depth=8).target_depth, fit(never, max_depth=8).typical_depth) == (1, 1.0)


def ungated(chances: dict[int, float], *, told: int, num_prompts: int = 40, num_steps: int = 25) -> list[GateReading]:
    """Trees that go on whatever was accepted: a path passes each depth with its chance, and ends where it does not.

    At depth `told` the confidence says only whether the path has come that far, deeper also whether it goes on.
    """
    generator = np.random.default_rng(5)
    readings = []
    for prompt in range(num_prompts):
        for step in range(num_steps):
            on_path = True
            for depth, chance in sorted(chances.items()):
                before = on_path
                on_path = before and bool(generator.random() < chance)
                score = (2.0 if before else 0.0) + (2.0 if on_path and depth != told else 0.0) + generator.normal()
                readings.append(GateReading(step, f"prompt-{prompt}", depth, 1 / (1 + math.exp(-score)), on_path))
    return readings


def test_conditional_auc_asks_only_those_whose_path_came_so_far() -> None:
    """Depth 2's confidence knows that the path reached depth 1, and nothing of its own step."""
    first, second, third = fit(ungated({1: 0.6, 2: 0.7, 3: 0.7}, told=2), max_depth=4).depths
    assert first.conditional.n == first.n and first.conditional.auc == first.auc
    assert second.auc is not None and second.auc > 0.7
    assert second.conditional.auc == pytest.approx(0.5, abs=0.06)
    assert second.conditional.auc_low is not None and second.conditional.auc_low < 0.5 < second.conditional.auc_high
    assert third.conditional.auc is not None and third.conditional.auc > 0.85
    assert second.conditional.n == round(first.acceptance * first.n)
    assert [depth.conditional.acceptance for depth in (first, second, third)] == pytest.approx(
        [0.6, 0.7, 0.7], abs=0.05
    )


def test_drop_rule_finds_the_depths_where_acceptance_falls() -> None:
    readings = ungated({1: 0.9, 2: 0.9, 3: 0.6, 4: 0.6}, told=0)
    result = fit(readings, max_depth=5, checkpoint_rule="drop")
    assert [checkpoint.depth for checkpoint in result.checkpoints] == [1, 3]
    for depth, drop in zip(result.depths, (0.1, 0.0, 0.3, 0.0), strict=True):
        assert depth.drop == pytest.approx(drop, abs=0.05)
        assert depth.drop_low is not None and depth.drop_high is not None
        assert depth.drop_low < depth.drop < depth.drop_high
    strict = fit(readings, max_depth=5, checkpoint_rule="drop", drop_cut=0.5)
    assert "depth 4: acceptance drops by 0.0" in str(strict.no_checkpoint_reason) and not strict.checkpoints
    assert [row.depth for row in fit(readings, max_depth=5).checkpoints] == [1, 2, 3, 4]  # confidence tells everywhere


def test_thresholds_are_fitted_to_half_of_the_prompts() -> None:
    readings = planted({1: 0.7})
    assert len(fit(readings, max_depth=2).fitting) == 20
    assert fit(readings, max_depth=2).fitting < {reading.request_id for reading in readings}
