"""Shares one step's draft budget among the trees: level by level while they grow, and once more in the end.

    R = K_max
    grant(depth 1), grant(depth 2), ...     gate -> offers -> charge, best path first, until `done`
    finish()                                widen: what was seen and not granted, best first, until R == 0;
                                            or rerank: growing was free, the best K_max of all seen are paid for;
                                            or drop: the plan has nothing verified

Where the plan has a price, nothing is bought that does not raise the tokens expected per second. Order and ties are
those of order.py everywhere. Knows no drafter, no model and no policy, only the plan. After ECHO (arXiv 2604.09603), as
reported, and EAGLE-2's rerank (EMNLP 2024); tie rules and bookkeeping are ours.
"""

from itertools import pairwise

import numpy as np

from echo_sched.scheduler.acceptance import Acceptance
from echo_sched.scheduler.gate import GateDecision, read_gate
from echo_sched.scheduler.order import best_first, even_shares, mask, rank_within
from echo_sched.scheduler.plan import AllocationReport, Grant, Plan, Selection
from echo_sched.scheduler.readings import ReadingLog
from echo_sched.scheduler.seen import NOT_GRANTED, Seen
from echo_sched.tree import ROOT, BoolArray, FloatArray, IntArray, Offers

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
        self._acceptance = Acceptance() if plan.price is None else plan.price.acceptance
        self._caps = np.minimum(depth_caps, plan.max_depth)
        self._shares = np.full(num_requests, plan.k_max) if plan.shares is None else np.array(plan.shares, np.int64)
        self._limits = np.full(num_requests, UNLIMITED) if plan.rerank else self._shares  # [B] while growing
        self._remaining = UNLIMITED if plan.rerank else plan.k_max
        self._depth = 0
        self._pays = True
        self._finished = False
        self._gained = 0.0  # chances of the granted nodes, summed
        self._num_offered = 0
        self._num_nodes = np.zeros(num_requests, np.int64)
        self._num_widened = np.zeros(num_requests, np.int64)
        self._num_dropped = np.zeros(num_requests, np.int64)
        self._gate_truncated = np.zeros(num_requests, np.int64)
        self._budget_truncated = np.zeros(num_requests, np.int64)
        self._price_truncated = np.zeros(num_requests, np.int64)
        self._deepened: dict[int, int] = {}
        self._seen: list[Seen] = []
        self._likeliest = np.zeros(0)  # the K_max best chances seen, best first; kept where the plan reranks
        self._log = ReadingLog()
        # Request i's frontier is its nodes [first[i], num_nodes[i]), whose values start at level_start[i].
        self._first = np.full(num_requests, ROOT)
        self._level_start = np.arange(num_requests)
        self._level_logp, self._level_chance = np.zeros(num_requests), np.ones(num_requests)
        self.active: BoolArray = (self._caps > 0) & (self._shares > 0)  # [B] requests whose trees go on

    @property
    def done(self) -> bool:
        """No further depth is granted: R == 0, nobody is active, the deepest level is D_max, or it would not pay."""
        return self._remaining == 0 or self._depth == self._plan.max_depth or not self._pays or not self.active.any()

    def grant(self, candidates: Offers) -> Grant:
        """Spend budget on the next depth. `candidates` are all children of the active requests' granted frontier nodes.

        A request without candidates ends here; that is no truncation.
        """
        assert not self.done and not self._finished
        self._depth += 1
        self._num_offered += candidates.size
        candidates = best_first(candidates)
        row = self._frontier_rows(candidates)
        chance = np.minimum(self._level_chance[row], self._acceptance.chance(self._depth, candidates.path_logp))
        decision = self._read_gate(candidates, row)
        offered = self._offered(candidates, decision)
        if self._plan.rerank:
            seen = np.concatenate([self._likeliest, chance])
            self._likeliest = np.sort(seen)[::-1][: self._plan.k_max]
        granted = self._affordable(offered, chance)
        bought = granted[: self._num_bought(chance[granted])]
        self._note_truncated(decision, *(candidates.request[rows] for rows in (offered, granted, bought)))
        # The parents of what is not granted are granted nodes, so any of it may become a leaf. A request truncated for
        # lack of budget is no truncation point to widen at: nothing is left to widen with.
        numbers = np.full(candidates.size, NOT_GRANTED)
        numbers[bought] = self._charge(candidates.take(bought), chance[bought])
        self._seen.append(Seen(candidates, numbers, np.full(candidates.size, self._depth), chance, decision.stopped))
        served = mask(len(self._caps), candidates.request[bought])
        self.active = served & (self._caps > self._depth) & (self._num_nodes < self._limits)
        self._pays = self._next_level_pays(chance[bought][self.active[candidates.request[bought]]])
        return Grant(candidates.take(bought), numbers[bought], self.active)

    def finish(self) -> Selection:
        """End the trees: rerank, widen or drop them, as the plan says. What is added is a leaf."""
        assert not self._finished
        self._finished = True
        if not self._plan.verify:
            return self._drop()
        if self._plan.rerank:
            return self._rerank()
        return Selection(self._widen() if self._plan.widen else Grant.nothing(len(self._caps)), None)

    @property
    def report(self) -> AllocationReport:
        """What was done so far."""
        beyond = self._num_nodes - even_shares(self._plan.k_max, len(self._caps))
        left_by_truncated = np.maximum(-beyond, 0)[self._gate_truncated > 0].sum()
        return AllocationReport(
            num_offered=self._num_offered,
            num_levels=self._depth,
            num_nodes=self._num_nodes.copy(),
            num_widened=self._num_widened.copy(),
            num_dropped=self._num_dropped.copy(),
            num_transferred=int(min(np.maximum(beyond, 0).sum(), left_by_truncated)),
            gate_truncated=self._gate_truncated.copy(),
            budget_truncated=self._budget_truncated.copy(),
            price_truncated=self._price_truncated.copy(),
            deepened=dict(self._deepened),
            seen=Seen.concat(self._seen),
            expected=self._gained,
            readings=self._log.readings,
        )

    def _frontier_rows(self, candidates: Offers) -> IntArray:
        """[C] where each candidate's parent is among the frontier's values."""
        request, parent = candidates.request, candidates.parent
        assert self.active[request].all(), "only active requests have candidates"
        offset = parent - self._first[request]
        assert ((offset >= 0) & (parent < self._num_nodes[request])).all(), "parents were granted at the depth above"
        rows: IntArray = self._level_start[request] + offset
        return rows

    def _read_gate(self, candidates: Offers, frontier_row: IntArray) -> GateDecision:
        # The root has S = 0 and would never stop, so at depth 1 a branch is judged by its own first node.
        judged: FloatArray = candidates.path_logp if self._depth == 1 else self._level_logp[frontier_row]
        decision = read_gate(self._plan.gate_rule(self._depth), candidates, judged, len(self._caps))
        self._log.add(self._depth, decision)
        return decision

    def _offered(self, candidates: Offers, decision: GateDecision) -> IntArray:
        """Rows that requests ask for: past the gate, within siblings, width and share."""
        offered = np.flatnonzero(~decision.stopped)
        if self._plan.children is not None:
            family = candidates.request[offered] * (self._num_nodes.max() + 2) + candidates.parent[offered]
            offered = offered[rank_within(family) < self._plan.children[self._depth - 1]]
        limit = np.minimum(self._plan.widths[self._depth - 1], self._limits - self._num_nodes)
        request = candidates.request[offered]
        within: IntArray = offered[rank_within(request) < limit[request]]
        return within

    def _affordable(self, offered: IntArray, chance: FloatArray) -> IntArray:
        """The offered rows that K_max has room for. chance [C], of all candidates of the depth."""
        if not (self._plan.rerank and self._plan.shares is None and offered.size):
            return offered[: self._remaining]
        # Children are never likelier than their parent: below what K_max leaves out in the end, nothing can be kept.
        within: IntArray = offered[chance[offered] >= self._likeliest[-1]]
        return within

    def _num_bought(self, chances: FloatArray) -> int:
        """How many of the affordable nodes [G] are worth it. Growing is free where the best are chosen later."""
        price = self._plan.price
        if price is None or self._plan.rerank:
            return len(chances)
        return price.best_count(self._gained, chances, int(self._num_nodes.sum()), self._depth)

    def _next_level_pays(self, frontier: FloatArray) -> bool:
        price = self._plan.price
        if price is None or frontier.size == 0:
            return True
        if self._plan.rerank:
            return price.pays(0.0, self._likeliest, frontier, 0, self._depth)
        return price.pays(self._gained, np.zeros(0), frontier, int(self._num_nodes.sum()), self._depth)

    def _note_truncated(self, decision: GateDecision, asked: IntArray, afforded: IntArray, served: IntArray) -> None:
        """Requests of the nodes asked for, affordable, and bought; each is truncated by the first thing it failed."""
        asks, affords, gets = (mask(len(self._caps), requests) for requests in (asked, afforded, served))
        self._gate_truncated[decision.truncated] = self._depth
        self._budget_truncated[asks & ~affords] = self._depth
        self._price_truncated[affords & ~gets] = self._depth
        if self._depth > self._plan.target_depth and served.size:
            self._deepened[self._depth] = served.size

    def _widen(self) -> Grant:
        """Spend what is left on what was seen and not granted."""
        seen = Seen.concat(self._seen)
        allowed = seen.node == NOT_GRANTED
        if self._plan.widen_scope == "truncation":
            allowed &= seen.at_truncation
        if self._plan.shares is not None:  # no transfer: what a truncated request leaves is discarded, for itself too
            allowed &= self._gate_truncated[seen.offers.request] == 0
        chosen = seen.take(allowed).best(self._shares - self._num_nodes, self._remaining)
        chosen = chosen.take(np.arange(self._num_bought(chosen.chance)))
        self._num_widened = np.bincount(chosen.offers.request, minlength=len(self._caps))
        return self._leaves(chosen)

    def _drop(self) -> Selection:
        """Keep nothing of what was grown."""
        self._num_dropped, self._num_nodes = self._num_nodes, np.zeros_like(self._num_nodes)
        self._gained = 0.0
        return Selection(Grant.nothing(len(self._caps)), ((),) * len(self._caps))

    def _rerank(self) -> Selection:
        """Pay for the best of all that was seen, as many as pay, and drop the rest."""
        plan, num_grown = self._plan, self._num_nodes
        kept = Seen.concat(self._seen).best(self._shares, plan.k_max)
        if plan.price is not None:
            kept = kept.take(np.arange(plan.price.best_count(0.0, kept.chance, 0, self._depth)))
        self._gained = float(kept.chance.sum())
        stay = kept.take(kept.node != NOT_GRANTED)
        leaves = self._leaves(kept.take(kept.node == NOT_GRANTED))
        self._num_dropped = num_grown - np.bincount(stay.offers.request, minlength=len(num_grown))
        self._num_nodes = self._num_nodes - self._num_dropped
        request = np.concatenate([stay.offers.request, leaves.offers.request])
        node = np.concatenate([stay.node, leaves.node])
        ordered, ends = node[np.lexsort((node, request))].tolist(), np.cumsum(self._num_nodes).tolist()
        return Selection(leaves, tuple(ordered[low:high] for low, high in pairwise([0, *ends])))

    def _leaves(self, chosen: Seen) -> Grant:
        """Charge nodes that get no children."""
        return Grant(chosen.offers, self._charge(chosen.offers, chosen.chance), np.zeros(len(self._caps), np.bool_))

    def _charge(self, granted: Offers, chance: FloatArray) -> IntArray:
        """Pay for the nodes and make them the frontier. Returns their numbers [G]."""
        counts = np.bincount(granted.request, minlength=len(self._caps))
        rank = rank_within(granted.request)
        node = self._num_nodes[granted.request] + rank
        self._first = self._num_nodes.copy()
        self._level_start = np.cumsum(counts) - counts
        row = self._level_start[granted.request] + rank
        self._level_logp, self._level_chance = np.zeros(granted.size), np.zeros(granted.size)
        self._level_logp[row], self._level_chance[row] = granted.path_logp, chance
        self._num_nodes = self._num_nodes + counts
        self._remaining -= granted.size
        self._gained += float(chance.sum())
        return node
