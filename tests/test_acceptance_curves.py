"""Acceptance curves: what they give back, and what is fitted to verified nodes."""

import math
import random

import numpy as np
import pytest

from calibration.acceptance import MIN_NODES, NUM_BINS, acceptance_curves
from echo_sched.scheduler.acceptance import Acceptance, AcceptanceCurve
from echo_sched.types import NodeReading

CURVE = AcceptanceCurve(2, 100, (0.0, 0.5, 1.0), (0.0, 0.2, 0.8))


def nodes(depth: int, count: int, truth: float, seed: int = 0) -> list[NodeReading]:
    """Nodes accepted with `truth` times what the drafter thinks of them."""
    chance = random.Random(seed)
    thought = [chance.uniform(0.01, 1.0) for _ in range(count)]
    return [NodeReading(i, "r", depth, math.log(p), chance.random() < truth * p) for i, p in enumerate(thought)]


def test_without_curves_a_drafter_is_taken_at_its_word() -> None:
    assert Acceptance().chance(3, np.log([0.25, 1.0])) == pytest.approx([0.25, 1.0])


def test_a_depth_without_a_curve_takes_that_of_the_nearest_shallower_one() -> None:
    logps = np.log([0.25, 0.5, 0.75, 1.0])
    acceptance = Acceptance((CURVE,))
    assert acceptance.chance(1, logps) == pytest.approx([0.25, 0.5, 0.75, 1.0])
    for depth in (2, 7):
        assert acceptance.chance(depth, logps) == pytest.approx([0.1, 0.2, 0.5, 0.8])
    assert acceptance.chance(2, np.array([-np.inf, -800.0])) == pytest.approx([0.0, 0.0])


def test_fitted_curves_find_what_nodes_are_worth() -> None:
    curves = acceptance_curves([*nodes(1, 20_000, 0.9), *nodes(2, 20_000, 0.5, seed=1)])
    assert [(curve.depth, curve.n) for curve in curves] == [(1, 20_000), (2, 20_000)]
    acceptance = Acceptance(curves)
    for depth, truth in ((1, 0.9), (2, 0.5)):
        for probability in (0.1, 0.3, 0.5, 0.7, 0.9):
            assert acceptance.chance(depth, np.log([probability]))[0] == pytest.approx(truth * probability, abs=0.04)
    assert all(len(curve.path_probability) <= NUM_BINS + 2 for curve in curves)


def test_the_likely_few_among_many_unlikely_are_told_apart() -> None:
    """Most nodes of an ungated tree are hardly possible; the deep ones that are bought are the few likely ones."""
    chance = random.Random(8)
    thought = [chance.uniform(0.0, 0.01) for _ in range(9_000)] + [chance.uniform(0.2, 1.0) for _ in range(800)]
    (curve,) = acceptance_curves(
        [NodeReading(i, "r", 1, math.log(p), chance.random() < p) for i, p in enumerate(thought)]
    )
    for probability in (0.3, 0.5, 0.7, 0.9):
        assert Acceptance((curve,)).chance(1, np.log([probability]))[0] == pytest.approx(probability, abs=0.1)


def test_nodes_of_one_path_probability_stay_together() -> None:
    nodes = [NodeReading(i, "r", 1, math.log(0.01), False) for i in range(300)]
    nodes += [NodeReading(i, "r", 1, math.log(0.9), i % 2 == 0) for i in range(300)]
    (curve,) = acceptance_curves(nodes)
    assert Acceptance((curve,)).chance(1, np.log([0.01, 0.9])) == pytest.approx([0.0, 0.5])


def test_few_nodes_make_no_curve_and_equal_ones_make_a_step() -> None:
    assert acceptance_curves(nodes(1, MIN_NODES - 1, 1.0)) == ()
    same = [NodeReading(i, "r", 1, math.log(0.5), i % 4 == 0) for i in range(400)]
    (curve,) = acceptance_curves(same)
    assert curve.acceptance == pytest.approx((0.0, 0.25, 0.25))


def test_the_order_of_nodes_changes_nothing() -> None:
    known = nodes(1, 500, 0.7)
    assert acceptance_curves(known) == acceptance_curves(random.Random(3).sample(known, len(known)))
