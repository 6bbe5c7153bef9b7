"""Shares one step's draft budget among the trees: level by level while they grow, and once more in the end.

    R = K_max
    grant(depth 1), grant(depth 2), ...     gate -> offers -> charge, likeliest first, until `done`
    finish()                                widen, rerank or drop (finish.py)

Where the plan has a price, nothing is bought that does not raise the tokens expected per second, except what floors and
latency targets claim (fairness.py): that comes first, and whatever it costs. Order and ties are those of order.py
everywhere. Knows no drafter, no model and no policy, only the plan. After ECHO (arXiv 2604.09603), as
reported; tie rules and bookkeeping are ours.
"""

import numpy as np

from echo_sched.scheduler.account import Account
from echo_sched.scheduler.fairness import FLOOR, REST, Fairness
from echo_sched.scheduler.finish import Grown, finish
from echo_sched.scheduler.gate import GateDecision, read_gate
from echo_sched.scheduler.level import Level
from echo_sched.scheduler.order import best_first, largest, mask, rank_within
from echo_sched.scheduler.plan import AllocationReport, Grant, Plan, Selection
from echo_sched.scheduler.seen import NOT_GRANTED, Seen
from echo_sched.scheduler.tally import Tally
from echo_sched.tree import BoolArray, FloatArray, IntArray, Offers

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
        self._acceptance = plan.acceptance
        self._fairness = Fairness.neutral(num_requests) if plan.fairness is None else plan.fairness
        self._caps = np.minimum(depth_caps, plan.max_depth)
        self._shares = np.full(num_requests, plan.k_max) if plan.shares is None else np.array(plan.shares, np.int64)
        self._limits = np.full(num_requests, UNLIMITED) if plan.rerank else self._shares  # [B] while growing
        self._depth = 0
        self._finished = False
        self._account = Account(plan, num_requests, free=plan.rerank)
        self._level = Level.roots(num_requests)
        self._tally = Tally(plan, num_requests)
        self._seen: list[Seen] = []
        self._num_seen = np.zeros(num_requests, np.int64)
        # The K_max largest chances seen, and the K_max largest worths, which are chances times weights; where the plan
        # reranks. In no order.
        self._best_chances, self._best_worths = np.zeros(0), np.zeros(0)
        self.active: BoolArray = (self._caps > 0) & (self._shares > 0)  # [B] requests whose trees go on
        self._spare = np.zeros(0)  # the K_max largest chances of what may be widened with, in no order
        self._frontiers: list[int] = []  # nodes above each level that was drafted, the roots first
        self._frontier = self.active[self.active].astype(np.float64)  # chances of the nodes whose children come next
        self._goes_on = self._room_below() > 0

    @property
    def done(self) -> bool:
        """No further depth is granted: R == 0, nobody is active, the deepest level is D_max, or it would not pay."""
        return not self._goes_on or self._depth == self._plan.max_depth or not self.active.any()

    def grant(self, candidates: Offers) -> Grant:
        """Spend budget on the next depth. `candidates` are all children of the active requests' granted frontier nodes.

        A request without candidates ends here; that is no truncation.
        """
        assert not self.done and not self._finished
        assert self.active[candidates.request].all(), "only active requests have candidates"
        self._depth += 1
        self._frontiers.append(self._frontier.size)
        row = self._level.rows(candidates)
        chance = self._acceptance.chance(self._depth, candidates.path_logp, candidates.request)
        chance = np.minimum(self._level.chance[row], chance)
        order = best_first(candidates, chance, self._fairness.weight)
        candidates, row, chance = candidates.take(order), row[order], chance[order]
        self._note_family(row, chance)
        decision = self._read_gate(candidates, row)
        self._note_seen(candidates, chance)
        offered = self._offered(candidates, decision)
        granted, num_claimed = self._affordable(offered, candidates.request, chance)
        bought = granted[: self._account.num_bought(chance[granted], num_claimed, self._frontiers)]
        self._tally.note_level(
            self._depth, decision, *(candidates.request[rows] for rows in (offered, granted, bought))
        )
        # The parents of what is not granted are granted nodes, so any of it may become a leaf. A request truncated for
        # lack of budget is no truncation point to widen at: nothing is left to widen with.
        numbers = np.full(candidates.size, NOT_GRANTED)
        depths = np.full(candidates.size, self._depth)
        numbers[bought] = self._account.charge(candidates.request[bought], depths[bought], chance[bought])
        self._note_spare(chance, decision.stopped, numbers)
        self._level = Level.of(candidates.take(bought), numbers[bought], chance[bought], self._account.num_nodes)
        self._seen.append(Seen(candidates, numbers, depths, chance, decision.stopped))
        served = mask(len(self._caps), candidates.request[bought])
        self.active = served & (self._caps > self._depth) & (self._account.num_nodes < self._limits)
        self._frontier = chance[bought][self.active[candidates.request[bought]]]
        self._goes_on = self._room_below() > 0 and self._next_level_pays()
        return Grant(candidates.take(bought), numbers[bought], self.active)

    def finish(self) -> Selection:
        """End the trees: rerank, widen or drop them, as the plan says. What is added is a leaf."""
        assert not self._finished
        self._finished = True
        self._seen = [Seen.concat(self._seen)]
        grown = Grown(self._plan, self._fairness, self._shares, self._seen[0], self._account, tuple(self._frontiers))
        selection, self._account = finish(grown, self._tally)
        return selection

    @property
    def report(self) -> AllocationReport:
        """What was done so far."""
        account = self._account
        return self._tally.report(tuple(self._frontiers), account.num_nodes, Seen.concat(self._seen), account.gained_at)

    def _read_gate(self, candidates: Offers, frontier_row: IntArray) -> GateDecision:
        # The root has S = 0 and would never stop, so at depth 1 a branch is judged by its own first node.
        judged: FloatArray = candidates.path_logp if self._depth == 1 else self._level.path_logp[frontier_row]
        return read_gate(self._plan.gate_rule(self._depth), candidates, judged, len(self._caps))

    def _note_family(self, frontier_row: IntArray, chance: FloatArray) -> None:
        """Rows of the candidates' parents and chances [C], best first."""
        likeliest = np.zeros(len(self._level.chance))
        likeliest[frontier_row[::-1]] = chance[::-1]  # of entries for one place the last stays
        self._tally.note_family(float(self._frontier.sum()), float(likeliest.sum()))

    def _note_seen(self, candidates: Offers, chance: FloatArray) -> None:
        self._num_seen = self._num_seen + np.bincount(candidates.request, minlength=len(self._caps))
        if self._plan.rerank:
            self._best_chances = largest(np.concatenate([self._best_chances, chance]), self._plan.k_max)
            if self._plan.fairness is None:  # every weight is 1
                self._best_worths = self._best_chances
            else:
                worth = chance * self._fairness.weight[candidates.request]
                self._best_worths = largest(np.concatenate([self._best_worths, worth]), self._plan.k_max)

    def _note_spare(self, chance: FloatArray, stopped: BoolArray, numbers: IntArray) -> None:
        """Chances, whether the gate stopped them, and node numbers of the candidates [C] of one depth."""
        if self._plan.widen and self._plan.price is not None:
            spare = numbers == NOT_GRANTED
            if self._plan.widen_scope == "truncation":
                spare &= stopped
            self._spare = largest(np.concatenate([self._spare, chance[spare]]), self._plan.k_max)

    def _offered(self, candidates: Offers, decision: GateDecision) -> IntArray:
        """Rows that requests ask for: past the gate, within siblings, width and share."""
        offered, num_nodes = np.flatnonzero(~decision.stopped), self._account.num_nodes
        if self._plan.children is not None:
            family = candidates.request[offered] * (num_nodes.max() + 2) + candidates.parent[offered]
            offered = offered[rank_within(family) < self._plan.children[self._depth - 1]]
        limit = np.minimum(self._plan.widths[self._depth - 1], self._limits - num_nodes)
        request = candidates.request[offered]
        if (np.bincount(request, minlength=len(limit)) <= limit).all():  # ranks take several times as long
            return offered
        within: IntArray = offered[rank_within(request) < limit[request]]
        return within

    def _affordable(self, offered: IntArray, request: IntArray, chance: FloatArray) -> tuple[IntArray, int]:
        """The offered rows that there is room for, lower tiers first, and how many of them are claimed.

        request and chance [C], of all candidates of the depth.
        """
        account = self._account
        if not (self._fairness.claims or self._plan.rerank):
            return offered[: account.room(self._frontiers)], 0
        tier = self._fairness.tiers(request[offered], chance[offered], account)
        if self._plan.rerank:
            if self._plan.shares is None and offered.size:
                # Children are never likelier than their parent: below what K_max leaves out, nothing can be kept.
                worth = chance[offered] * self._fairness.weight[request[offered]]
                offered = offered[(worth >= self._best_worths.min()) | (tier < REST)]
            return offered, 0
        order = np.argsort(tier, kind="stable")
        offered, tier, room = offered[order], tier[order], account.room(self._frontiers)
        in_floor = np.bincount(request[offered[tier == FLOOR]], minlength=len(self._caps))
        num_nodes, going = account.num_nodes + in_floor, mask(len(self._caps), request[offered])
        spare = self._num_seen - num_nodes
        kept_back = self._fairness.reserved(num_nodes, spare, going & (self._caps > self._depth))
        count = min(max(room - kept_back, int(in_floor.sum())), room, len(offered))
        return offered[:count], int((tier[:count] < REST).sum())

    def _room_below(self) -> int:
        """Room beside the drafting of one level more."""
        return self._account.room([*self._frontiers, self._frontier.size])

    def _next_level_pays(self) -> bool:
        price, account, frontier = self._plan.price, self._account, self._frontier
        if price is None or frontier.size == 0:
            return True
        if (self.active & self._fairness.in_need(account)).any():
            return True
        if self._plan.rerank:
            return price.pays(0.0, self._best_chances, frontier, 0, self._frontiers)
        return price.pays(account.gained, self._spare, frontier, account.num_paid, self._frontiers)
