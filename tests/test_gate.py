"""What the gate reads and whom it truncates, one depth at a time."""

import numpy as np
import pytest

from echo_sched.scheduler.gate import GateRule, read_gate
from echo_sched.tree import ROOT, Offers


def offers(rows: list[tuple[int, float]]) -> Offers:
    """Candidates of the root from (request, path probability)."""
    request, probability = zip(*rows, strict=True)
    count = len(rows)
    return Offers(np.array(request), np.full(count, ROOT), np.arange(count), np.log(np.array(probability)))


CANDIDATES = offers([(0, 0.2), (0, 0.5), (2, 0.3), (2, 0.1)])


def test_confidence_is_the_best_path_probability_of_each_request() -> None:
    decision = read_gate(None, CANDIDATES, CANDIDATES.path_logp, 3)
    assert decision.confidence == pytest.approx([0.5, 0.0, 0.3])
    assert decision.present.tolist() == [True, False, True]
    assert not decision.truncated.any()
    assert not decision.stopped.any()


def test_request_scope_truncates_whole_requests_at_or_below_the_threshold() -> None:
    decision = read_gate(GateRule(0.3 + 1e-9, "request"), CANDIDATES, CANDIDATES.path_logp, 3)
    assert decision.truncated.tolist() == [False, False, True]
    assert decision.stopped.tolist() == [False, False, True, True]
    certain = offers([(0, 1.0)])
    assert read_gate(GateRule(1.0, "request"), certain, certain.path_logp, 1).truncated.all()
    assert not read_gate(GateRule(np.nextafter(1.0, 0.0), "request"), certain, certain.path_logp, 1).truncated.any()


def test_branch_scope_judges_each_branch_by_its_frontier_node() -> None:
    frontier = np.log(np.array([0.9, 0.2, 0.2, 0.25]))
    decision = read_gate(GateRule(0.3, "branch"), CANDIDATES, frontier, 3)
    assert decision.stopped.tolist() == [False, True, True, True]
    assert decision.truncated.tolist() == [False, False, True]


def test_nobody_without_candidates_is_truncated() -> None:
    decision = read_gate(GateRule(1.0, "request"), CANDIDATES, CANDIDATES.path_logp, 3)
    assert decision.truncated.tolist() == [True, False, True]
    empty = read_gate(GateRule(1.0, "branch", 1.0, (0, 0, 1)), Offers.empty(), np.zeros(0), 3)
    assert not empty.truncated.any()


def draws(rate: float, key: tuple[int, ...], probability: float, num_requests: int = 400) -> list[bool]:
    candidates = offers([(request, probability) for request in range(num_requests)])
    rule = GateRule(0.5, "request", rate, key)
    return read_gate(rule, candidates, candidates.path_logp, num_requests).truncated.tolist()


def test_random_gate_truncates_at_its_rate_whatever_the_confidence() -> None:
    sure, unsure = draws(0.3, (1, 2, 3), 0.99), draws(0.3, (1, 2, 3), 0.01)
    assert sure == unsure
    assert sum(sure) / len(sure) == pytest.approx(0.3, abs=0.08)  # 3.5 standard deviations of 400 draws
    assert not any(draws(0.0, (1, 2, 3), 0.01))
    assert all(draws(1.0, (1, 2, 3), 0.99))


def test_random_gate_draws_afresh_for_every_seed_step_and_depth() -> None:
    base = draws(0.5, (1, 2, 3), 0.9)
    assert draws(0.5, (1, 2, 3), 0.9) == base
    assert all(draws(0.5, key, 0.9) != base for key in ((0, 2, 3), (1, 0, 3), (1, 2, 0)))


def test_random_gate_still_reports_what_the_threshold_would_have_done() -> None:
    rule = GateRule(0.4, "request", 0.0, (0, 0, 1))
    decision = read_gate(rule, CANDIDATES, CANDIDATES.path_logp, 3)
    assert decision.unsure.tolist() == [False, False, True]
    assert not decision.truncated.any()
