"""What drafts were good for, and how deep: one node is not charged for the levels of many."""

import numpy as np
import pytest

from echo_sched.scheduler.gains import FIRST_TREES, Gains
from echo_sched.scheduler.plan import AllocationReport, Plan
from tests.allocation_twin import drive


def chain(probability: float, depth: int, num_requests: int = 2, k_max: int = 40) -> AllocationReport:
    """Every request gets a chain of so many nodes, each as likely as the one above it times `probability`."""
    plan = Plan(k_max, depth, depth, (1,) * depth, (None,) * depth)
    return drive(plan, [20] * num_requests, lambda request, path: [(1, probability)]).report


def test_tokens_and_levels_are_those_of_the_best_nodes() -> None:
    gains = Gains()
    for _ in range(FIRST_TREES // 2):
        assert not gains.known
        gains.observe(chain(0.5, 4), num_drafting=2, k_max=40)
    tokens, levels = gains.of(np.array([0.0, 2.0, 4.0, 6.0, 8.0, 20.0]), 2)
    assert gains.known
    assert tokens == pytest.approx(2 * np.array([0.0, 0.5, 0.75, 0.875, 0.9375, 0.9375]))
    assert levels == pytest.approx([0.0, 1.0, 2.0, 3.0, 4.0, 4.0])


def test_levels_in_vain_burden_every_number_of_nodes_but_none() -> None:
    """Of two levels that were drafted, the second brought nothing that was verified."""
    plan = Plan(2, 3, 3, (1,) * 3, (None,) * 3, rerank=True)
    report = drive(plan, [20] * 2, lambda request, path: [(1, 0.9 if not path else 0.1)]).report
    assert report.num_levels == 2 and report.num_nodes.tolist() == [1, 1]
    gains = Gains()
    gains.observe(report, num_drafting=2, k_max=2)
    _, levels = gains.of(np.array([0.0, 2.0, 4.0]), 2)
    assert levels == pytest.approx([0.0, 2.0, 2.0])


def test_nothing_is_learned_of_more_nodes_than_a_step_could_have() -> None:
    gains = Gains()
    gains.observe(chain(0.9, 8), num_drafting=2, k_max=40)
    before = gains.of(np.array([2.0, 16.0]), 2)
    for _ in range(200):
        gains.observe(chain(0.2, 8, k_max=2), num_drafting=2, k_max=2)
    after = gains.of(np.array([2.0, 16.0]), 2)
    assert after[0] == pytest.approx([2 * 0.2, before[0][1]], rel=1e-3) and after[1][0] == pytest.approx(1.0, rel=1e-3)
    assert after[1][1] == before[1][1]


def test_for_a_larger_batch_the_same_nodes_per_request_bring_more() -> None:
    gains = Gains()
    gains.observe(chain(0.5, 2), num_drafting=2, k_max=40)
    assert gains.of(np.array([10.0]), 10)[0] == pytest.approx([5 * gains.of(np.array([2.0]), 2)[0][0]])
    assert gains.of(np.array([10.0]), 10)[1] == pytest.approx(gains.of(np.array([2.0]), 2)[1])


def test_one_requests_text_weighs_less_than_that_of_many_and_rare_steps_weigh_more() -> None:
    """After a hundred sure steps, five unsure ones of a single request, of a batch, and as probes."""

    def after_a_change(num_requests: int, rare: bool) -> float:
        gains = Gains()
        for probability in (0.9,) * 100 + (0.1,) * 5:
            gains.observe(chain(probability, 1, num_requests), num_requests, 40, rare=rare and probability == 0.1)
        tokens, _ = gains.of(np.array([float(num_requests)]), num_requests)
        return float(tokens[0]) / num_requests

    assert after_a_change(1, rare=False) == pytest.approx(0.1 + 0.8 * 0.98**5)
    assert after_a_change(8, rare=False) == pytest.approx(0.1 + 0.8 * 0.9**5)
    assert after_a_change(1, rare=True) == pytest.approx(0.1 + 0.8 * 0.9**5)
