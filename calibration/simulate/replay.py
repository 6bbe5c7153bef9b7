"""A recorded trace in the drafter's place: what was offered then is offered again, to whatever grows the trees now.

    ReplayedStep: expand, plant, expand, plant, ...        once per step, as loop/grow.py does with a drafter

A node that the recorded drafter did not draft further has no children here. Knows no policy, no clock and no request.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from calibration.simulate.recorded import RecordedOffers
from echo_sched.scheduler.budget import Allocation
from echo_sched.scheduler.plan import AllocationReport, Grant, Plan
from echo_sched.tree import ROOT, Frontier, IntArray, Offers


class Replayed(NamedTuple):
    """What became of a step."""

    accepted: IntArray  # [B] nodes that the answer accepts
    report: AllocationReport
    num_cut: int  # requests whose right path the trace did not draft further, though the policy would have


def replay_step(recorded: RecordedOffers, pools: IntArray, plan: Plan, caps: IntArray, max_children: int) -> Replayed:
    """Grow and end the trees of one step: request i drafts from pool `pools[i]`, no deeper than `caps[i]`."""
    step = ReplayedStep(recorded, pools, max_children)
    allocation = Allocation(plan, caps)
    growing = np.flatnonzero(allocation.active)
    frontier = Frontier(growing, np.full(growing.size, ROOT))
    while not allocation.done and frontier.request.size:
        frontier = step.plant(allocation.grant(step.expand(frontier)))
    selection = allocation.finish()
    step.plant(selection.leaves)
    return Replayed(step.accepted(selection.kept), allocation.report, step.num_cut)


class ReplayedStep:
    """The trees of one step."""

    def __init__(self, recorded: RecordedOffers, pools: IntArray, max_children: int) -> None:
        self._recorded = recorded
        self._pools = pools
        self._max_children = max_children
        self._rows: list[list[int]] = [[] for _ in pools]  # recorded row of each node
        self._keys = [np.zeros(0, np.int64)]  # of everything offered so far
        self._offered = [np.zeros(0, np.int64)]  # recorded rows of the same
        self.num_cut = 0

    def expand(self, frontier: Frontier) -> Offers:
        """The recorded children of the frontier's nodes."""
        pairs = zip(frontier.request.tolist(), frontier.node.tolist(), strict=True)
        rows = [ROOT if node == ROOT else self._rows[request][node] for request, node in pairs]
        pools = self._pools[frontier.request]
        child, count = self._recorded.children(pools, np.array(rows, np.int64), self._max_children)
        offers = Offers(
            np.repeat(frontier.request, count),
            np.repeat(frontier.node, count),
            self._recorded.token[child],
            self._recorded.path_logp[child],
        )
        self._keys.append(_keys(offers))
        self._offered.append(child)
        return offers

    def plant(self, grant: Grant) -> Frontier:
        """Number granted nodes as the allocation does. Returns those that may have children."""
        keys = np.concatenate(self._keys)
        order = np.argsort(keys)
        place = order[np.searchsorted(keys, _keys(grant.offers), sorter=order)]
        rows = np.concatenate(self._offered)[place]
        for request, node, row in zip(grant.offers.request.tolist(), grant.node.tolist(), rows.tolist(), strict=True):
            assert node == len(self._rows[request]), "grant order numbers the nodes"
            self._rows[request].append(row)
        recorded = self._recorded
        going = grant.active[grant.offers.request] & ~recorded.stops[rows]
        self.num_cut += int((going & recorded.accepted[rows] & ~recorded.drafted[rows]).sum())
        return Frontier(grant.offers.request[going], grant.node[going])

    def accepted(self, kept: Sequence[Sequence[int]] | None) -> IntArray:
        """[B] nodes of each tree that the answer accepts; `kept` is what the selection left of the trees."""
        rows = self._rows
        if kept is not None:
            rows = [[mine[node] for node in nodes] for mine, nodes in zip(rows, kept, strict=True)]
        return np.array([self._recorded.accepted[np.array(mine, np.int64)].sum() for mine in rows], np.int64)


def _keys(offers: Offers) -> IntArray:
    """[C] one number per candidate of a step. A token has 31 bits at most (pool.py sees to it)."""
    return (((offers.request << 20) + offers.parent - ROOT) << 31) + offers.token
