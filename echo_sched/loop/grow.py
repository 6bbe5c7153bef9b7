"""Grows the draft trees of a step: the drafter offers, the allocation grants, level by level, and ends them."""

from collections.abc import Callable, Sequence, Set
from contextlib import AbstractContextManager

import numpy as np

from echo_sched.engine.draft import Drafter
from echo_sched.loop.emission import is_stop_id
from echo_sched.scheduler.budget import Allocation
from echo_sched.scheduler.plan import AllocationReport, Grant, Plan
from echo_sched.tree import ROOT, DraftTree, Frontier
from echo_sched.types import Request


def grow_trees(
    requests: Sequence[Request],
    plan: Plan,
    drafter: Drafter,
    *,
    branching: int,
    eos_ids: Set[int],
    clock: Callable[[str], AbstractContextManager[None]],
) -> tuple[list[DraftTree], AllocationReport]:
    """One tree per decoding request, all within the plan, and what the allocation did."""
    trees = [DraftTree() for _ in requests]
    # The last token a request may emit needs no draft, so a tree is never deeper than what is left minus one.
    caps = [r.num_remaining - 1 if r.params.speculation else 0 for r in requests]
    lengths = np.array([request.num_tokens for request in requests], np.int64)
    allocation = Allocation(plan, plan.drafting_caps(np.array(caps, np.int64), lengths))
    growing = np.flatnonzero(allocation.active)
    frontier = Frontier(growing, np.full(growing.size, ROOT))
    if not allocation.done:
        with clock("draft"):
            drafter.extend([requests[index] for index in growing.tolist()])
    while not allocation.done and frontier.request.size:
        with clock("draft"):
            offers = drafter.expand(requests, trees, frontier, branching)
        with clock("schedule"):
            frontier = _plant(requests, trees, allocation.grant(offers), eos_ids)
    with clock("schedule"):
        selection = allocation.finish()
        _plant(requests, trees, selection.leaves, eos_ids)
        if selection.kept is not None:
            trees = [tree.keep(nodes.tolist()) for tree, nodes in zip(trees, selection.kept, strict=True)]
        return trees, allocation.report


def _plant(requests: Sequence[Request], trees: Sequence[DraftTree], grant: Grant, eos_ids: Set[int]) -> Frontier:
    """Put granted nodes into their trees. Returns those that may have children: nothing follows a stop id."""
    going: list[tuple[int, int]] = []
    columns = (column.tolist() for column in (*grant.offers, grant.node))
    for index, parent, token, path_logp, node in zip(*columns, strict=True):
        planted = trees[index].add(parent, token, path_logp)
        assert planted == node, "grant order numbers the nodes"
        if grant.active[index] and not is_stop_id(requests[index], token, eos_ids):
            going.append((index, node))
    pairs = np.array(going, np.int64).reshape(-1, 2)
    return Frontier(pairs[:, 0], pairs[:, 1])
