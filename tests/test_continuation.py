"""What a further level may be hoped to bring: as calibrated, then as such levels brought."""

from dataclasses import replace

import numpy as np
import pytest

from echo_sched.scheduler.continuation import Continuation
from echo_sched.scheduler.depths import DepthStats
from echo_sched.scheduler.plan import AllocationReport, Plan
from echo_sched.scheduler.price import Price
from echo_sched.scheduler.starting_values import BUILT_IN_PROFILES
from tests.allocation_twin import Children, drive

BUILT_IN = BUILT_IN_PROFILES["eagle3"]


def grown(children: Children, caps: tuple[int, ...] = (20, 20), price: Price | None = None) -> AllocationReport:
    plan = Plan(40, 3, 3, (4,) * 3, (None,) * 3, price=price)
    return drive(plan, list(caps), children).report


def test_of_each_parent_its_likeliest_child_counts() -> None:
    """Below the root 0.8 and 0.1; below the likelier 0.4 of it and 0.2 of it, below the other nothing."""

    def children(request: int, path: tuple[int, ...]) -> list[tuple[int, float]]:
        return {(): [(1, 0.8), (2, 0.1)], (1,): [(3, 0.4), (4, 0.2)]}.get(path, [])

    report = grown(children)
    assert report.num_levels == 3
    assert report.parents == pytest.approx([2.0, 2 * 0.9, 2 * (0.32 + 0.16)])
    assert report.children == pytest.approx([2 * 0.8, 2 * 0.32, 0.0])


def test_nodes_at_their_requests_depth_cap_are_no_parents() -> None:
    report = grown(lambda request, path: [(1, 0.5)], caps=(1, 3, 0))
    assert report.parents == pytest.approx([2.0, 0.5, 0.25])
    assert report.children == pytest.approx([2 * 0.5, 0.25, 0.125])


def test_it_begins_as_calibrated() -> None:
    depths = tuple(
        DepthStats(depth, 100, reached, None, None, None, None, None) for depth, reached in ((1, 0.5), (2, 0.1))
    )
    shares = Continuation(replace(BUILT_IN, depths=depths), 4).shares
    assert shares == pytest.approx([0.5, 0.2, 1.0, 1.0])


def test_it_learns_what_children_keep_and_forgets_it_where_nothing_is_drafted() -> None:
    continuation = Continuation(replace(BUILT_IN, depths=()), 3)
    for _ in range(300):
        continuation.observe(grown(lambda request, path: [(1, 0.9 if not path else 0.3)]))
    assert continuation.shares == pytest.approx([0.9, 0.3, 0.3], abs=0.12)
    for _ in range(1000):
        continuation.observe(grown(lambda request, path: [(1, 0.9)] if not path else []))
    assert continuation.shares == pytest.approx([0.9, 0.0, 1.0], abs=0.05)


def test_a_level_that_never_pays_is_drafted_no_more() -> None:
    """Likely nodes, unlikely children: a second level pays only as long as children are hoped to be as likely."""
    dear = Price(2.0, 2.0 + 0.5 * np.arange(41.0), 0.0, 0.2, np.array([0.2]), np.ones(3))
    continuation = Continuation(replace(BUILT_IN, depths=()), 3)

    def children(request: int, path: tuple[int, ...]) -> list[tuple[int, float]]:
        return [(1, 0.9 if not path else 0.05)]

    levels = []
    for _ in range(60):
        report = grown(children, price=dear._replace(continuation=continuation.shares))
        continuation.observe(report)
        levels.append(report.num_levels)
    assert levels[0] == 2 and levels[-20:].count(1) >= 15, levels
