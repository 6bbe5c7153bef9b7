"""Live acceptance: what is accepted corrects what was calibrated, for each kind of temperature and each depth alone."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from echo_sched.scheduler.acceptance import Acceptance, AcceptanceCurve
from echo_sched.scheduler.cost import CostTable, DraftingCost
from echo_sched.scheduler.economy import PROBE_NODES
from echo_sched.scheduler.live_acceptance import LIMIT, LiveAcceptance
from echo_sched.scheduler.plan import Feedback, Load, Plan
from echo_sched.scheduler.policy import PolicySettings, make_policy
from echo_sched.scheduler.starting_values import BUILT_IN_PROFILES
from tests.allocation_twin import drive

CURVE = AcceptanceCurve(1, 500, (0.0, 1.0), (0.0, 0.8))
STEEP = CostTable((1, 100), (0,), ((1.0,), (26.0,)), DraftingCost.constant(0.05), {})  # a row more costs a quarter


def shifted(chance: float, log_odds: float) -> float:
    return 1 / (1 + (1 - chance) / chance * np.exp(-log_odds))


def learned(truth: dict[tuple[float, int], float], num_steps: int = 400) -> LiveAcceptance:
    """Two nodes a request, one below the other. truth: (temperature, depth) -> by how much the curve errs, in log odds.

    A second node is accepted only if the first is, so its own chance is what the first leaves of it.
    """
    random, live = np.random.default_rng(5), LiveAcceptance(Acceptance((CURVE,)), 4)
    temperatures = np.array(sorted({temperature for temperature, _ in truth}))
    for _ in range(num_steps):
        first, second = random.uniform(0.5, 0.9, len(temperatures)), random.uniform(0.1, 0.4, len(temperatures))
        expected = np.stack([first, second, 0 * first, 0 * first], axis=1)
        calibrated = live.of(temperatures, len(temperatures)).log_odds
        assert calibrated is not None
        odds = expected / (1 - expected) * np.exp(calibrated)
        lots, accepted = random.random(len(temperatures)), []
        for index, temperature in enumerate(temperatures):
            chances = [shifted(expected[index, depth], truth[temperature, depth + 1]) for depth in (0, 1)]
            accepted.append(sum(lots[index] < min(chances[: depth + 1]) for depth in (0, 1)))
        live.observe(temperatures, odds / (1 + odds), accepted)
    return live


def test_it_finds_by_how_much_the_curve_errs_at_each_temperature_and_depth() -> None:
    truth = {(0.0, 1): 0.5, (0.0, 2): 0.0, (1.0, 1): -1.0, (1.0, 2): -0.5}
    live = learned(truth)
    for bucket, temperature in ((0, 0.0), (3, 1.0)):
        assert live.shift[bucket, :2] == pytest.approx([truth[temperature, 1], truth[temperature, 2]], abs=0.35)
    assert not live.shift[1:3].any() and not live.shift[:, 2:].any(), "nothing was seen there"


def test_chances_are_those_of_the_requests_own_temperature() -> None:
    live = LiveAcceptance(Acceptance((CURVE,)), 2)
    live.shift[:] = [[0.0, 0.0], [-1.0, 0.0], [-2.0, 0.0], [-3.0, 0.0]]
    acceptance = live.of(np.array([0.0, 0.3, 0.7, 1.0]), 4)
    found = acceptance.chance(1, np.log(np.full(4, 0.5)), np.arange(4))
    assert found == pytest.approx([shifted(0.4, -shift) for shift in range(4)])
    assert acceptance.chance(2, np.log(np.full(4, 0.5)), np.arange(4)) == pytest.approx([0.4] * 4)
    assert live.of(None, 3).chance(1, np.log([0.5]), np.array([2])) == pytest.approx([0.4])


def test_what_cannot_be_stays_so_and_what_is_likelier_stays_likelier() -> None:
    live = LiveAcceptance(Acceptance(), 1)
    for shift in (-9.0, -1.0, 2.0, 9.0):
        live.shift[:] = shift
        with np.errstate(divide="ignore"):
            found = live.of(None, 5).chance(1, np.log([0.0, 0.1, 0.5, 0.9, 1.0]), np.arange(5))
        assert found[0] == 0.0 and found[-1] == 1.0 and (np.diff(found) > 0).all()


def test_the_curves_word_outweighs_a_few_trees() -> None:
    live = LiveAcceptance(Acceptance(), 1)
    live.observe(None, np.array([[0.5], [0.5]]), [0, 0])
    assert -0.15 < live.shift[0, 0] < 0
    nothing = LiveAcceptance(Acceptance(), 1)
    nothing.observe(None, np.zeros((2, 1)), [0, 0])
    assert not nothing.shift.any()


@pytest.mark.parametrize(("chance", "batch_size"), [(0.005, 16), (0.5, 16), (0.999, 16), (0.5, 1024)])
def test_chances_that_are_right_stay_as_they_are(chance: float, batch_size: int) -> None:
    """Also where hardly anything is or all but everything is accepted, and where one batch says a lot."""
    live, random = LiveAcceptance(Acceptance(), 1), np.random.default_rng(7)
    for _ in range(2000):
        now = live.of(None, batch_size).chance(1, np.full(batch_size, np.log(chance)), np.arange(batch_size))
        live.observe(None, now[:, None], (random.random(batch_size) < chance).astype(int).tolist())
    assert abs(live.shift[0, 0]) < 1.0


def test_what_nobody_buys_is_believed_in_again_after_a_while() -> None:
    live = LiveAcceptance(Acceptance(), 1)
    for _ in range(50):
        live.observe(None, np.full((8, 1), 0.5), [0] * 8)
    refused = live.shift[0, 0]
    for _ in range(1000):
        live.observe(None, np.zeros((8, 1)), [0] * 8)
    assert refused == -LIMIT and -1.0 < live.shift[0, 0] < 0.0


def test_in_a_mixed_batch_the_likelier_node_is_bought_whatever_its_drafter_says() -> None:
    """The sampled request's path probability is the higher one, its chance the lower."""
    acceptance = Acceptance(log_odds=np.array([[-3.6], [0.0]]))
    plan = Plan(1, 1, 1, (1,), (None,), acceptance=acceptance)
    report = drive(plan, [5, 5], lambda request, path: [(1, (0.8, 0.7)[request])]).report
    assert report.num_nodes.tolist() == [0, 1] and report.expected == pytest.approx(0.7)


def nodes_bought(temperature: float, accepts: bool, **changes: Any) -> list[int]:
    """Nodes verified in each step; drafts say that they are sure, and are or are not."""
    chosen = PolicySettings(**{"policy": "goodput", "k_max": 16, "live_costs": "off", **changes})
    policy = make_policy(chosen, replace(BUILT_IN_PROFILES["eagle3"], cost=STEEP))
    nodes = []
    for step in range(60):
        load = Load(4, step, temperature=np.full(4, temperature))
        report = drive(policy.plan(load), [3] * 4, lambda request, path: [(1, 0.8)]).report
        policy.observe(load, Feedback(report, (report.num_nodes if accepts else 0 * report.num_nodes).tolist()))
        nodes.append(int(report.num_nodes.sum()))
    return nodes


def test_drafts_that_the_sampler_refuses_are_soon_bought_no_more() -> None:
    refused = nodes_bought(1.0, accepts=False)
    assert refused[0] > 0 and set(refused[20:]) <= {0, PROBE_NODES} and refused[20:].count(0) > 30, "but for probes"
    assert all(nodes_bought(1.0, accepts=True))
    assert all(nodes_bought(1.0, accepts=False, live_acceptance="off")), "the profile's word for ever"
