"""What an allocation did, counted on the way: who was truncated and why, what was deepened, widened and dropped.

Plain counting; decides nothing.
"""

import numpy as np

from echo_sched.scheduler.gate import GateDecision
from echo_sched.scheduler.order import even_shares, mask
from echo_sched.scheduler.plan import AllocationReport, Plan
from echo_sched.scheduler.readings import ReadingLog
from echo_sched.scheduler.seen import Seen
from echo_sched.tree import FloatArray, IntArray


class Tally:
    """The counts of one step over B requests."""

    def __init__(self, plan: Plan, num_requests: int) -> None:
        self._plan = plan
        self._num_offered = 0
        self.num_widened = np.zeros(num_requests, np.int64)
        self.num_dropped = np.zeros(num_requests, np.int64)
        self.gate_truncated = np.zeros(num_requests, np.int64)
        self._budget_truncated = np.zeros(num_requests, np.int64)
        self._price_truncated = np.zeros(num_requests, np.int64)
        self._deepened: dict[int, int] = {}
        self._parents: list[float] = []
        self._children: list[float] = []
        self._log = ReadingLog()

    def note_level(
        self, depth: int, decision: GateDecision, asked: IntArray, afforded: IntArray, served: IntArray
    ) -> None:
        """Requests of the nodes asked for, affordable, and bought; each is truncated by the first thing it failed."""
        num_requests = len(self.gate_truncated)
        asks, affords, gets = (mask(num_requests, requests) for requests in (asked, afforded, served))
        self._num_offered += len(decision.stopped)
        self._log.add(depth, decision)
        self.gate_truncated[decision.truncated] = depth
        self._budget_truncated[asks & ~affords] = depth
        self._price_truncated[affords & ~gets] = depth
        if depth > self._plan.target_depth and served.size:
            self._deepened[depth] = served.size

    def note_family(self, parents: float, children: float) -> None:
        """A level was drafted below nodes of so much chance together; so much have their likeliest children."""
        self._parents.append(parents)
        self._children.append(children)

    def report(
        self, frontiers: tuple[int, ...], num_nodes: IntArray, seen: Seen, chances: FloatArray
    ) -> AllocationReport:
        """Where it stands after levels below so many nodes. num_nodes [B]; chances [B, max_depth] of nodes, summed."""
        beyond = num_nodes - even_shares(self._plan.k_max, len(num_nodes))
        left_by_truncated = np.maximum(-beyond, 0)[self.gate_truncated > 0].sum()
        return AllocationReport(
            num_offered=self._num_offered,
            frontiers=frontiers,
            num_nodes=num_nodes.copy(),
            num_widened=self.num_widened.copy(),
            num_dropped=self.num_dropped.copy(),
            num_transferred=int(min(np.maximum(beyond, 0).sum(), left_by_truncated)),
            gate_truncated=self.gate_truncated.copy(),
            budget_truncated=self._budget_truncated.copy(),
            price_truncated=self._price_truncated.copy(),
            deepened=dict(self._deepened),
            seen=seen,
            chances=chances,
            parents=np.array(self._parents),
            children=np.array(self._children),
            readings=self._log.readings,
        )
