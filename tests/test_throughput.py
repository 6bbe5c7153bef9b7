"""Thresholds per load: what the search finds, on functions and on replayed steps whose answer is known."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from calibration.chosen import chosen_k_max
from calibration.pool import Pool
from calibration.simulate.recorded import RecordedOffers
from calibration.throughput import (
    MIN_GAIN,
    Positions,
    Steps,
    Thresholds,
    draw_steps,
    fit_buckets,
    search,
    with_buckets,
)
from calibration.trace import OfferTrace, TracedRequest, TraceHeader
from echo_sched.scheduler.cost import CostTable, DraftingCost
from echo_sched.scheduler.depths import Checkpoint
from echo_sched.scheduler.policy import PolicySettings
from echo_sched.scheduler.profile import Identity, Profile
from echo_sched.scheduler.starting_values import built_in_profile
from echo_sched.tree import ROOT

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
STEEP = CostTable(ROWS, (0,), tuple((1.0 + 0.2 * (rows - 1),) for rows in ROWS), DraftingCost.constant(0.02), {})
SURE, UNSURE = 0.9, 0.4
CONFIDENCES = {1: np.array([SURE, UNSURE] * 20)}
# widening would buy again what the gate refused: by the word of this drafter it pays
SETTINGS = PolicySettings(k_max=8, max_depth=1, branching=1, widen="off")


@pytest.fixture(autouse=True)
def few_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """As few as tell what there is to tell."""
    monkeypatch.setattr("calibration.throughput.NUM_POSITIONS", 16)


def pool(chance: float, accepted: bool) -> Pool:
    """One candidate."""
    number = np.zeros(1, np.int64)
    return Pool(number + 1, number + ROOT, number + 5, np.log([chance]), number, np.array([accepted]))


def positions(*halves: tuple[bool, bool], count: int = 8) -> Positions:
    """(sure is right, unsure is right) of the fitting half, and of the other; sure and unsure take turns."""
    pools = tuple(
        tuple(pool(*pair) for _ in range(count) for pair in zip((SURE, UNSURE), half, strict=True)) for half in halves
    )
    requests = tuple(TracedRequest(3, 2 * count + 2, 2 * count + 1) for _ in halves)
    header = TraceHeader(Identity("tiny", None), Identity("ngram", None), 1, 1, 0.0, (), requests, {})
    fitting = np.repeat([number == 0 for number in range(len(halves))], 2 * count)
    return Positions(RecordedOffers(OfferTrace(header, pools)), fitting, np.full(len(fitting), 10))


def profile(threshold: float) -> Profile:
    checkpoint = Checkpoint(1, (threshold,), None, None, None, 40)
    return replace(built_in_profile("ngram"), cost=STEEP, checkpoints=(checkpoint,))


def test_the_search_finds_the_top_of_a_hill_and_stays_on_a_plain() -> None:
    confidences = {depth: np.linspace(0.0, 1.0, 101) for depth in (1, 2)}

    def hill(thresholds: Thresholds) -> float:
        return 100.0 - 50 * abs(thresholds[1] - 0.4) - 20 * abs(thresholds[2] - 0.1)

    found, curves = search(hill, {1: 0.9, 2: 0.9}, confidences)
    assert found == pytest.approx({1: 0.4, 2: 0.1})
    assert [curves[depth][0][0] for depth in (1, 2)] == [0.0, 0.0]
    flat, _ = search(lambda thresholds: 100.0, {1: 0.9, 2: 0.8}, confidences)
    assert flat == {1: 0.9, 2: 0.8}
    slight, _ = search(lambda thresholds: 1.0 + (MIN_GAIN - 1.0) * (1 - thresholds[1]), {1: 0.9, 2: 0.8}, confidences)
    assert slight == {1: 0.9, 2: 0.8}, "nothing clear is gained"


def test_a_gate_is_found_that_saves_what_is_never_accepted() -> None:
    """The drafter says 0.4 where it is always wrong, and by its word such a node would pay."""
    found = fit_buckets(
        positions((True, False), (True, False)), profile(0.95), SETTINGS, CONFIDENCES, seed=0, report=lambda *_: None
    )
    assert [bucket.load for bucket in found] == [0.5, 1.0, 2.0, 4.0, 8.0]  # K_max is 8
    assert [bucket.batch_size for bucket in found] == [16, 8, 4, 2, 1]
    alone = found[-1]
    assert alone.thresholds == {1: pytest.approx(UNSURE)}
    assert alone.fitting.throughput > max(alone.fitting.youden, alone.fitting.no_gate)
    assert alone.held_out is not None and alone.held_out.throughput > max(alone.held_out[1:])
    stored = with_buckets(profile(0.95), found)
    assert stored.loads == (0.5, 1.0, 2.0, 4.0, 8.0)
    assert stored.checkpoints[0].thresholds == tuple(bucket.thresholds[1] for bucket in found)


def test_held_out_speeds_are_the_other_halfs() -> None:
    """There the unsure are right too, so that the gate costs tokens."""
    found = fit_buckets(
        positions((True, False), (True, True)), profile(0.95), SETTINGS, CONFIDENCES, seed=0, report=lambda *_: None
    )
    assert found[-1].held_out is not None
    assert found[-1].held_out.no_gate > found[-1].held_out.throughput > found[-1].held_out.youden
    alone = fit_buckets(positions((True, False)), profile(0.95), SETTINGS, CONFIDENCES, seed=0, report=lambda *_: None)
    assert alone[-1].held_out is None


def test_throughput_is_what_paper_says() -> None:
    """Alone, gate at 0.5: the sure emit 2 tokens in 1.2 s and a level, the unsure 1 in 1 s and a level."""
    where = positions((True, False))
    steps = Steps(where, np.arange(16), 1, profile(0.5), SETTINGS, seed=3)
    assert steps.throughput({1: 0.5}) == pytest.approx(3.0 / (1.2 + 1.0 + 2 * 0.02))
    assert steps.throughput({1: 0.0}) == pytest.approx(3.0 / (1.2 + 1.2 + 2 * 0.02))
    assert steps.throughput({1: 0.95}) == pytest.approx(2.0 / (1.0 + 1.0 + 2 * 0.02))


def test_steps_hold_every_position_as_often_as_any_other_but_for_one_time() -> None:
    for size, batch in product((1, 5, 100, 1000), (1, 7, 64)):
        steps = draw_steps(np.arange(size), batch, seed=1)
        counts = np.bincount(np.concatenate(steps), minlength=size)
        assert {len(step) for step in steps} == {batch} and counts.max() - counts.min() <= 1
        again = draw_steps(np.arange(size), batch, seed=1)
        assert all(np.array_equal(one, other) for one, other in zip(steps, again, strict=True))
    assert draw_steps(np.zeros(0, np.int64), 4, seed=1) == []


def test_the_k_max_chosen_pays_for_itself() -> None:
    """Alone one node pays, at 0.65 tokens for 0.2 s; behind a dear level none does, whatever the batch."""
    chosen = chosen_k_max(positions((True, True)), profile(0.0), replace(SETTINGS, k_max=32))
    assert chosen[1] == 1
    dear = replace(profile(0.0), cost=replace(STEEP, drafting=DraftingCost.constant(50.0)))
    assert set(chosen_k_max(positions((True, True)), dear, replace(SETTINGS, k_max=32)).values()) == {0}
