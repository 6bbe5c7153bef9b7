"""Shares one step's draft budget among the trees: level by level while they grow, then in width.

    R = K_max
    grant(depth 1), grant(depth 2), ...     gate -> offers -> charge, best path first, until `done`
    finish()                                widen: the pool of what was seen and not granted, best path first, until
                                            R == 0; or rerank: growing was free, the best K_max of all seen are paid for

One order everywhere: best path logprob first, ties by arrival (request index), then token id, then parent. Node numbers
follow from it and never from the order in which candidates arrive. Knows no drafter, no model and no policy, only the
plan. After ECHO (arXiv 2604.09603), as reported; tie rules and bookkeeping are ours.
"""

import numpy as np

from echo_sched.scheduler.gate import GateDecision, read_gate
from echo_sched.scheduler.plan import AllocationReport, GateReadings, Grant, Plan, Selection
from echo_sched.scheduler.rerank import NOT_GRANTED, Seen, rank_within, rerank
from echo_sched.tree import ROOT, BoolArray, IntArray, Offers

UNLIMITED = np.iinfo(np.int32).max  # nodes: what growing costs when only the best are paid for in the end


class Allocation:
    """The budget of one step over B requests.

    Call `grant` for depth 1, 2, ... until `done` (or until the frontier is empty), then `finish` once, then `report`.
    """

    def __init__(self, plan: Plan, depth_caps: IntArray) -> None:
        """`depth_caps` [B]: deepest node each request may get; 0 means no tree. `plan.max_depth` caps everybody."""
        num_requests = len(depth_caps)
        assert plan.shares is None or len(plan.shares) == num_requests
        self._plan = plan
        self._caps = np.minimum(depth_caps, plan.max_depth)
        self._shares = np.full(num_requests, plan.k_max) if plan.shares is None else np.array(plan.shares, np.int64)
        self._depth = 0
        self._remaining = UNLIMITED if plan.rerank else plan.k_max
        self._limits = np.full(num_requests, UNLIMITED) if plan.rerank else self._shares  # [B] while growing
        self._finished = False
        self._num_offered = 0
        self._num_nodes = np.zeros(num_requests, np.int64)
        self._num_widened = np.zeros(num_requests, np.int64)
        self._num_dropped = np.zeros(num_requests, np.int64)
        self._gate_truncated = np.zeros(num_requests, np.int64)
        self._budget_truncated = np.zeros(num_requests, np.int64)
        self._deepened: dict[int, int] = {}
        self._seen: list[Seen] = []
        self._readings: list[GateReadings] = []
        # Request i's frontier is its nodes [first[i], num_nodes[i]); level_logp holds their S from level_start[i] on.
        self._first = np.full(num_requests, ROOT)
        self._level_start = np.arange(num_requests)
        self._level_logp = np.zeros(num_requests)
        self.active: BoolArray = (self._caps > 0) & (self._shares > 0)  # [B] requests whose trees go on

    @property
    def done(self) -> bool:
        """No further depth can be granted: R == 0, nobody is active, or the deepest level is D_max."""
        return self._remaining == 0 or self._depth == self._plan.max_depth or not self.active.any()

    def grant(self, candidates: Offers) -> Grant:
        """Spend budget on the next depth. `candidates` are all children of the active requests' granted frontier nodes.

        A request without candidates ends here; that is no truncation.
        """
        assert not self.done and not self._finished
        self._depth += 1
        depth, width = self._depth, self._plan.widths[self._depth - 1]
        candidates = _best_first(candidates)
        decision = self._read_gate(candidates)
        offered = np.flatnonzero(~decision.stopped)
        if self._plan.children is not None:
            siblings = rank_within(
                candidates.request[offered] * (self._num_nodes.max() + 2) + candidates.parent[offered]
            )
            offered = offered[siblings < self._plan.children[depth - 1]]
        limit = np.minimum(width, self._limits - self._num_nodes)
        request = candidates.request[offered]
        offered = offered[rank_within(request) < limit[request]]
        granted = offered[: self._remaining]
        asked = _mask(len(self._caps), candidates.request[offered])
        served = _mask(len(self._caps), candidates.request[granted])
        self._gate_truncated[decision.truncated] = depth
        self._budget_truncated[asked & ~served] = depth
        if depth > self._plan.target_depth and granted.size:
            self._deepened[depth] = granted.size
        node = self._charge(candidates.take(granted))
        # The parents of what is not granted are granted nodes, so any of it may become a leaf. A request truncated for
        # lack of budget is no truncation point to widen at: nothing is left to widen with.
        numbers = np.full(candidates.size, NOT_GRANTED)
        numbers[granted] = node
        self._seen.append(Seen(candidates, numbers, np.full(candidates.size, depth), decision.stopped))
        self.active = served & (self._caps > depth) & (self._num_nodes < self._limits)
        return Grant(candidates.take(granted), node, self.active)

    def finish(self) -> Selection:
        """End the trees: rerank or widen, as the plan says. What is added is a leaf."""
        assert not self._finished
        self._finished = True
        if self._plan.rerank:
            return self._rerank()
        return Selection(self._widen() if self._plan.widen else Grant.nothing(len(self._caps)), None)

    def _widen(self) -> Grant:
        """Spend what is left on what was seen and not granted."""
        seen = Seen.concat(self._seen)
        allowed = seen.node == NOT_GRANTED
        if self._plan.widen_scope == "truncation":
            allowed &= seen.at_truncation
        if self._plan.shares is not None:  # no transfer: what a truncated request leaves is discarded, for itself too
            allowed &= self._gate_truncated[seen.offers.request] == 0
        pool = _best_first(seen.offers.take(allowed))
        left = self._shares - self._num_nodes
        granted = pool.take(np.flatnonzero(rank_within(pool.request) < left[pool.request])[: self._remaining])
        self._num_widened = np.bincount(granted.request, minlength=len(self._caps))
        return self._leaves(granted)

    def _rerank(self) -> Selection:
        """Pay for the best of all that was seen and drop the rest."""
        leaves, kept = rerank(Seen.concat(self._seen), self._shares, self._plan.k_max)
        self._num_dropped = self._num_nodes - np.array([len(nodes) for nodes in kept], np.int64)
        planted = self._leaves(leaves)
        num_leaves = np.bincount(leaves.request, minlength=len(self._caps))
        numbers = zip(kept, self._num_nodes - num_leaves, self._num_nodes, strict=True)
        self._num_nodes = self._num_nodes - self._num_dropped
        return Selection(planted, tuple(np.concatenate([nodes, np.arange(low, high)]) for nodes, low, high in numbers))

    def _leaves(self, granted: Offers) -> Grant:
        """Charge nodes that have no children."""
        return Grant(granted, self._charge(granted), np.zeros(len(self._caps), np.bool_))

    @property
    def report(self) -> AllocationReport:
        """What was done so far."""
        beyond = self._num_nodes - even_shares(self._plan.k_max, len(self._caps))
        left_by_truncated = np.maximum(-beyond, 0)[self._gate_truncated > 0].sum()
        return AllocationReport(
            num_offered=self._num_offered,
            num_nodes=self._num_nodes.copy(),
            num_widened=self._num_widened.copy(),
            num_dropped=self._num_dropped.copy(),
            num_transferred=int(min(np.maximum(beyond, 0).sum(), left_by_truncated)),
            gate_truncated=self._gate_truncated.copy(),
            budget_truncated=self._budget_truncated.copy(),
            deepened=dict(self._deepened),
            readings=_join_readings(self._readings),
        )

    def _read_gate(self, candidates: Offers) -> GateDecision:
        request, parent = candidates.request, candidates.parent
        assert self.active[request].all(), "only active requests have candidates"
        offset = parent - self._first[request]
        assert ((offset >= 0) & (parent < self._num_nodes[request])).all(), "parents were granted at the depth above"
        # The root has S = 0 and would never stop, so at depth 1 a branch is judged by its own first node.
        frontier_logp = (
            candidates.path_logp if self._depth == 1 else self._level_logp[self._level_start[request] + offset]
        )
        rule = self._plan.gate_rule(self._depth)
        decision = read_gate(rule, candidates, frontier_logp, len(self._caps))
        present = np.flatnonzero(decision.present)
        self._readings.append(
            GateReadings(
                request=present,
                depth=np.full(len(present), self._depth),
                confidence=decision.confidence[present],
                unsure=decision.unsure[present],
                let_through=~decision.truncated[present],
            )
        )
        self._num_offered += candidates.size
        return decision

    def _charge(self, granted: Offers) -> IntArray:
        """Pay for the nodes and make them the frontier. Returns their numbers [G]."""
        counts = np.bincount(granted.request, minlength=len(self._caps))
        rank = rank_within(granted.request)
        node = self._num_nodes[granted.request] + rank
        self._first = self._num_nodes.copy()
        self._level_start = np.cumsum(counts) - counts
        self._level_logp = np.zeros(granted.size)
        self._level_logp[self._level_start[granted.request] + rank] = granted.path_logp
        self._num_nodes += counts
        self._remaining -= granted.size
        return node


def even_shares(k_max: int, num_requests: int) -> IntArray:
    """[B] K_max split evenly; the first requests in arrival order get one more where it does not divide."""
    index = np.arange(num_requests)
    return k_max // max(num_requests, 1) + (index < k_max % max(num_requests, 1))


def _best_first(offers: Offers) -> Offers:
    assert not np.isnan(offers.path_logp).any()
    return offers.take(np.lexsort((offers.parent, offers.token, offers.request, -offers.path_logp)))


def _mask(length: int, rows: IntArray) -> BoolArray:
    mask = np.zeros(length, np.bool_)
    mask[rows] = True
    return mask


def _join_readings(parts: list[GateReadings]) -> GateReadings:
    if not parts:
        none, no_flag = np.zeros(0, np.int64), np.zeros(0, np.bool_)
        return GateReadings(none, none, np.zeros(0), no_flag, no_flag)
    return GateReadings(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
