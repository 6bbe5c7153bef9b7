"""Grows the draft trees of a step: the drafter offers, the allocation grants, level by level, and ends them.

What a grammar forbids is taken out of the offers before any is granted, so it costs nothing and has no children.
"""

from collections.abc import Callable, Sequence, Set
from contextlib import AbstractContextManager

import numpy as np

from echo_sched.engine.draft import Drafter
from echo_sched.loop.emission import is_stop_id
from echo_sched.loop.forbidding import DraftFilter
from echo_sched.scheduler.budget import Allocation
from echo_sched.scheduler.plan import AllocationReport, Grant, Plan
from echo_sched.tree import ROOT, DraftTree, Frontier, IntArray
from echo_sched.types import Request


def grow_trees(
    requests: Sequence[Request],
    plan: Plan,
    drafter: Drafter,
    draft_filter: DraftFilter,
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
    ending = np.array(sorted({*eos_ids, *(token for r in requests for token in r.params.stop_token_ids)}), np.int64)
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
            offers = offers.take(~np.isnan(offers.path_logp))  # a drafter gone wrong costs speed, not the server
            grant = allocation.grant(draft_filter(offers, trees))
            _plant(trees, grant)
            frontier = _frontier(requests, grant, ending, eos_ids)
    with clock("schedule"):
        selection = allocation.finish()
        _plant(trees, selection.leaves)
        if selection.kept is not None:
            trees = [tree.keep(nodes) for tree, nodes in zip(trees, selection.kept, strict=True)]
        return trees, allocation.report


def _plant(trees: Sequence[DraftTree], grant: Grant) -> None:
    """Put granted nodes into their trees."""
    columns = (column.tolist() for column in (*grant.offers, grant.node))
    for index, parent, token, path_logp, node in zip(*columns, strict=True):
        planted = trees[index].add(parent, token, path_logp)
        assert planted == node, "grant order numbers the nodes"


def _frontier(requests: Sequence[Request], grant: Grant, ending: IntArray, eos_ids: Set[int]) -> Frontier:
    """The granted nodes that may have children: nothing follows a stop id. `ending` holds the stop ids of anybody."""
    request, token = grant.offers.request, grant.offers.token
    going = grant.active[request]
    for row in np.flatnonzero(going & np.isin(token, ending)).tolist():
        going[row] = not is_stop_id(requests[request[row]], int(token[row]), eos_ids)
    return Frontier(request[going], grant.node[going])
