"""Shares one step's draft budget among the trees: level by level while they grow, and once more in the end.

    R = K_max
    grant(depth 1), grant(depth 2), ...     gate -> offers -> charge, best path first, until `done`
    finish()                                widen: what was seen and not granted, best first, until R == 0;
                                            or rerank: growing was free, the best K_max of all seen are paid for;
                                            or drop: the plan has nothing verified

Where the plan has a price, nothing is bought that does not raise the tokens expected per second, except what floors and
latency targets claim (fairness.py): that comes first, and whatever it costs. Order and ties are those of order.py
everywhere. Knows no drafter, no model and no policy, only the plan. After ECHO (arXiv 2604.09603), as
reported, and EAGLE-2's rerank (EMNLP 2024); tie rules and bookkeeping are ours.
"""

from itertools import pairwise

import numpy as np

from echo_sched.scheduler.acceptance import Acceptance
from echo_sched.scheduler.fairness import FLOOR, REST, Fairness
from echo_sched.scheduler.gate import GateDecision, read_gate
from echo_sched.scheduler.order import best_first, largest, mask, rank_within
from echo_sched.scheduler.plan import AllocationReport, Grant, Plan, Selection
from echo_sched.scheduler.seen import NOT_GRANTED, Seen
from echo_sched.scheduler.tally import Tally
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
        self._fairness = Fairness.neutral(num_requests) if plan.fairness is None else plan.fairness
        self._caps = np.minimum(depth_caps, plan.max_depth)
        self._shares = np.full(num_requests, plan.k_max) if plan.shares is None else np.array(plan.shares, np.int64)
        self._limits = np.full(num_requests, UNLIMITED) if plan.rerank else self._shares  # [B] while growing
        self._depth = 0
        self._finished = False
        self._gained = 0.0  # chances of the granted nodes, summed
        self._gained_by = np.zeros(num_requests)  # the same by request
        self._num_nodes = np.zeros(num_requests, np.int64)
        self._tally = Tally(plan, num_requests)
        self._seen: list[Seen] = []
        self._num_seen = np.zeros(num_requests, np.int64)
        # The K_max largest chances seen, and the K_max largest worths, which are chances times weights; where the plan
        # reranks. In no order.
        self._best_chances, self._best_worths = np.zeros(0), np.zeros(0)
        # Request i's frontier is its nodes [first[i], num_nodes[i]), whose values start at level_start[i].
        self._first = np.full(num_requests, ROOT)
        self._level_start = np.arange(num_requests)
        self._level_logp, self._level_chance = np.zeros(num_requests), np.ones(num_requests)
        self.active: BoolArray = (self._caps > 0) & (self._shares > 0)  # [B] requests whose trees go on
        self._goes_on = self._room(1) > 0

    @property
    def done(self) -> bool:
        """No further depth is granted: R == 0, nobody is active, the deepest level is D_max, or it would not pay."""
        return not self._goes_on or self._depth == self._plan.max_depth or not self.active.any()

    def grant(self, candidates: Offers) -> Grant:
        """Spend budget on the next depth. `candidates` are all children of the active requests' granted frontier nodes.

        A request without candidates ends here; that is no truncation.
        """
        assert not self.done and not self._finished
        self._depth += 1
        candidates = best_first(candidates, self._fairness.weight)
        row = self._frontier_rows(candidates)
        chance = np.minimum(self._level_chance[row], self._acceptance.chance(self._depth, candidates.path_logp))
        decision = self._read_gate(candidates, row)
        self._note_seen(candidates, chance)
        offered = self._offered(candidates, decision)
        granted, num_claimed = self._affordable(offered, candidates.request, chance)
        bought = granted[: self._num_bought(chance[granted], num_claimed)]
        self._tally.note_level(
            self._depth, decision, *(candidates.request[rows] for rows in (offered, granted, bought))
        )
        # The parents of what is not granted are granted nodes, so any of it may become a leaf. A request truncated for
        # lack of budget is no truncation point to widen at: nothing is left to widen with.
        numbers = np.full(candidates.size, NOT_GRANTED)
        numbers[bought] = self._charge(candidates.take(bought), chance[bought])
        self._seen.append(Seen(candidates, numbers, np.full(candidates.size, self._depth), chance, decision.stopped))
        served = mask(len(self._caps), candidates.request[bought])
        self.active = served & (self._caps > self._depth) & (self._num_nodes < self._limits)
        frontier = chance[bought][self.active[candidates.request[bought]]]
        self._goes_on = self._room(self._depth + 1) > 0 and self._next_level_pays(frontier)
        return Grant(candidates.take(bought), numbers[bought], self.active)

    def finish(self) -> Selection:
        """End the trees: rerank, widen or drop them, as the plan says. What is added is a leaf."""
        assert not self._finished
        self._finished = True
        if not self._plan.verify:
            return self._drop()
        if self._plan.rerank:
            return self._rerank()
        return Selection(self._widen(), None)

    @property
    def report(self) -> AllocationReport:
        """What was done so far."""
        return self._tally.report(self._depth, self._num_nodes, Seen.concat(self._seen), self._gained)

    def _room(self, num_levels: int) -> int:
        """Nodes that may yet be granted, R, beside the drafting of so many levels."""
        plan, num_nodes = self._plan, 0 if self._plan.rerank else int(self._num_nodes.sum())
        most = plan.k_max if plan.price is None else min(plan.k_max, plan.price.most_nodes(num_levels))
        return most - num_nodes

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
        return read_gate(self._plan.gate_rule(self._depth), candidates, judged, len(self._caps))

    def _note_seen(self, candidates: Offers, chance: FloatArray) -> None:
        self._num_seen = self._num_seen + np.bincount(candidates.request, minlength=len(self._caps))
        if self._plan.rerank:
            worth = chance * self._fairness.weight[candidates.request]
            self._best_chances = largest(np.concatenate([self._best_chances, chance]), self._plan.k_max)
            self._best_worths = largest(np.concatenate([self._best_worths, worth]), self._plan.k_max)

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

    def _affordable(self, offered: IntArray, request: IntArray, chance: FloatArray) -> tuple[IntArray, int]:
        """The offered rows that there is room for, lower tiers first, and how many of them are claimed.

        request and chance [C], of all candidates of the depth.
        """
        tier = self._fairness.tiers(request[offered], chance[offered], self._num_nodes, self._gained_by)
        if self._plan.rerank:
            if self._plan.shares is None and offered.size:
                # Children are never likelier than their parent: below what K_max leaves out, nothing can be kept.
                worth = chance[offered] * self._fairness.weight[request[offered]]
                offered = offered[(worth >= self._best_worths.min()) | (tier < REST)]
            return offered, 0
        order = np.argsort(tier, kind="stable")
        offered, tier, room = offered[order], tier[order], self._room(self._depth)
        in_floor = np.bincount(request[offered[tier == FLOOR]], minlength=len(self._caps))
        num_nodes, going = self._num_nodes + in_floor, mask(len(self._caps), request[offered])
        spare = self._num_seen - num_nodes
        kept_back = self._fairness.reserved(num_nodes, spare, going & (self._caps > self._depth))
        count = min(max(room - kept_back, int(in_floor.sum())), room, len(offered))
        return offered[:count], int((tier[:count] < REST).sum())

    def _num_bought(self, chances: FloatArray, num_claimed: int) -> int:
        """How many of the affordable nodes [G] are worth it, beside the claimed ones before them.

        Growing is free where the best are chosen later.
        """
        price, rerank = self._plan.price, self._plan.rerank
        if price is None or (rerank and not self._finished):
            return len(chances)
        gained, num_nodes = (0.0, 0) if rerank else (self._gained, int(self._num_nodes.sum()))
        gained += float(chances[:num_claimed].sum())
        return num_claimed + price.best_count(gained, chances[num_claimed:], num_nodes + num_claimed, self._depth)

    def _next_level_pays(self, frontier: FloatArray) -> bool:
        price = self._plan.price
        if price is None or frontier.size == 0:
            return True
        if (self.active & self._fairness.in_need(self._num_nodes, self._gained_by)).any():
            return True
        if self._plan.rerank:
            return price.pays(0.0, self._best_chances, frontier, 0, self._depth)
        return price.pays(self._gained, np.zeros(0), frontier, int(self._num_nodes.sum()), self._depth)

    def _widen(self) -> Grant:
        """Spend what is left on what was seen and not granted: on what is claimed, and on the rest if the plan says."""
        seen, plan = Seen.concat(self._seen), self._plan
        spare = seen.take(seen.node == NOT_GRANTED).best_first(self._fairness.weight)
        tier = self._fairness.tiers(spare.offers.request, spare.chance, self._num_nodes, self._gained_by)
        allowed = np.full(spare.offers.size, plan.widen)
        if plan.widen_scope == "truncation":
            allowed &= spare.at_truncation
        if plan.shares is not None:  # no transfer: what a truncated request leaves is discarded, for itself too
            allowed &= self._tally.gate_truncated[spare.offers.request] == 0
        wanted = allowed | (tier < REST)
        chosen = self._choose(spare.take(wanted), tier[wanted], self._shares - self._num_nodes)
        self._tally.num_widened = np.bincount(chosen.offers.request, minlength=len(self._caps))
        return self._leaves(chosen)

    def _choose(self, ordered: Seen, tier: IntArray, room: IntArray) -> Seen:
        """Of candidates that come best first, what may be had and is worth it: lower tiers first. room [B]."""
        within = rank_within(ordered.offers.request) < room[ordered.offers.request]
        ordered, tier = ordered.take(within), tier[within]
        rows = np.argsort(tier, kind="stable")[: max(self._room(self._depth), 0)]
        num_claimed = int((tier[rows] < REST).sum())
        return ordered.take(rows[: self._num_bought(ordered.chance[rows], num_claimed)])

    def _drop(self) -> Selection:
        """Keep nothing of what was grown."""
        self._tally.num_dropped, self._num_nodes = self._num_nodes, np.zeros_like(self._num_nodes)
        self._gained = 0.0
        return Selection(Grant.nothing(len(self._caps)), ((),) * len(self._caps))

    def _rerank(self) -> Selection:
        """Pay for the best of all that was seen, as many as pay, and drop the rest."""
        num_grown = self._num_nodes
        ordered = Seen.concat(self._seen).best_first(self._fairness.weight)
        none = np.zeros_like(num_grown)
        tier = self._fairness.tiers(ordered.offers.request, ordered.chance, none, np.zeros(len(none)))
        kept = self._choose(ordered, tier, self._shares)
        stay = kept.take(kept.node != NOT_GRANTED)
        leaves = self._leaves(kept.take(kept.node == NOT_GRANTED))
        self._gained = float(kept.chance.sum())
        self._tally.num_dropped = num_grown - np.bincount(stay.offers.request, minlength=len(num_grown))
        self._num_nodes = self._num_nodes - self._tally.num_dropped
        request = np.concatenate([stay.offers.request, leaves.offers.request])
        node = np.concatenate([stay.node, leaves.node])
        ordered_nodes, ends = node[np.lexsort((node, request))].tolist(), np.cumsum(self._num_nodes).tolist()
        return Selection(leaves, tuple(ordered_nodes[low:high] for low, high in pairwise([0, *ends])))

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
        self._gained += float(chance.sum())
        self._gained_by = self._gained_by + np.bincount(granted.request, chance, len(self._caps))
        return node
