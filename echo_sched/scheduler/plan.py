"""The plain values between the loop, a policy and an allocation: Load -> Plan -> Grant ... -> Feedback.

Data only. A plan is all an allocation knows of the policy that wrote it, so that every policy, ablations included,
drives the same code. B is the number of decoding requests of the step; requests are named by index, in arrival order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from echo_sched.scheduler.acceptance import Acceptance
from echo_sched.scheduler.fairness import Fairness, Pace
from echo_sched.scheduler.gate import GateRule, GateScope
from echo_sched.scheduler.price import Price
from echo_sched.scheduler.seen import Seen
from echo_sched.tree import BoolArray, FloatArray, IntArray, Offers

WidenScope = Literal["all", "truncation"]


class Load(NamedTuple):
    """What a policy knows of a step before it begins."""

    num_requests: int  # B
    step: int
    num_prompt_tokens: int = 0  # P: prompt chunks that are verified beside the trees
    num_cached_tokens: int = 0  # C: in the caches of all requests of the step together
    priority: FloatArray | None = None  # [B] above 0; None: all 1
    pace: Pace | None = None  # None: nobody has a latency target
    step_seconds: float = 0.0  # what steps have taken of late; 0: unknown
    temperature: FloatArray | None = None  # [B] of sampling; None: all greedy
    num_waiting_tokens: int = 0  # of the prompts under way, those that the step has no room for

    @property
    def need(self) -> FloatArray | None:
        """[B] accepted nodes that latency targets need of this step; None where nobody needs any."""
        need = None if self.pace is None else self.pace.tokens_needed(self.step_seconds)
        return need if need is not None and need.any() else None

    def fairness(self, floor: int, k_max: int) -> Fairness | None:
        """Who is served first in a step with `k_max` nodes; None where everybody is alike."""
        if floor == 0 and self.priority is None and self.need is None:
            return None
        return Fairness.of(self.num_requests, k_max, floor=floor, weight=self.priority, need=self.need)


@dataclass(frozen=True)
class Plan:
    """What one step may spend and where its trees are read. Tuples by depth are [max_depth]; entry d - 1 is depth d."""

    k_max: int  # most nodes of all trees together
    max_depth: int  # D_max; 0 plans no trees
    target_depth: int  # d0; nodes below it count as deepened
    widths: tuple[int, ...]  # most nodes a request offers at each depth, at least 1
    thresholds: tuple[float | None, ...]  # the gate's cut-off; None: the depth is not read
    children: tuple[int, ...] | None = None  # most children a node offers at each depth; None: as many as it has
    truncation_rates: tuple[float, ...] | None = None  # random gate: chance of truncation at each read depth
    random_key: tuple[int, int] = (0, 0)  # (seed, step); with the depth it decides every draw
    gate_scope: GateScope = "request"
    shares: tuple[int, ...] | None = None  # [B] most nodes per request, no transfer; None: budget moves freely
    widen: bool = False
    widen_scope: WidenScope = "all"
    rerank: bool = (
        False  # grow without paying (where there are no shares: the best K_max so far), then keep the best seen
    )
    price: Price | None = None  # None: whatever K_max allows is bought
    acceptance: Acceptance = field(default_factory=Acceptance)  # what a node's path probability is worth
    max_drafting: int | None = None  # most requests that draft, the shortest first; None: all
    fairness: Fairness | None = None  # who is served first, where budget moves freely; None: nobody
    verify: bool = True  # False: trees are drafted for what can be learned from them, and dropped
    explored: bool = False  # no gate, full trees for requests drawn by lot (explore.py)

    def __post_init__(self) -> None:
        assert self.k_max >= 0 and self.max_depth >= 0
        assert len(self.widths) == len(self.thresholds) == self.max_depth and all(width >= 1 for width in self.widths)
        assert self.children is None or len(self.children) == self.max_depth
        assert self.truncation_rates is None or len(self.truncation_rates) == self.max_depth
        assert self.shares is None or sum(self.shares) <= self.k_max
        assert self.price is None or len(self.price.verify_seconds) == self.k_max + 1
        assert self.fairness is None or self.shares is None, "who has a share competes with nobody"
        assert not (self.rerank and self.widen), "reranking spends the budget on width and depth alike"
        assert self.verify or not (self.rerank or self.widen), "nothing is chosen for no verification"

    def drafting_caps(self, caps: IntArray, lengths: IntArray) -> IntArray:
        """[B] the depth caps of those who may draft, 0 for the others. lengths [B]: tokens of each request so far."""
        if self.max_drafting is None:
            return caps
        able = np.flatnonzero(caps > 0)
        chosen = able[np.argsort(lengths[able], kind="stable")][: self.max_drafting]
        limited = np.zeros_like(caps)
        limited[chosen] = caps[chosen]
        return limited

    def gate_rule(self, depth: int) -> GateRule | None:
        """How the gate reads `depth` (from 1); None when it does not."""
        threshold = self.thresholds[depth - 1]
        if threshold is None:
            return None
        if self.truncation_rates is None:
            return GateRule(threshold, self.gate_scope)
        return GateRule(threshold, self.gate_scope, self.truncation_rates[depth - 1], (*self.random_key, depth))


class Grant(NamedTuple):
    """Nodes that were paid for, in the order that numbers them. Arrays [G]."""

    offers: Offers
    node: IntArray  # index in the request's tree: its k-th granted node of the step is node k
    active: BoolArray  # [B] requests whose trees go on; the next frontier is their part of `offers`

    @staticmethod
    def nothing(num_requests: int) -> "Grant":
        return Grant(Offers.empty(), np.zeros(0, np.int64), np.zeros(num_requests, np.bool_))


class Selection(NamedTuple):
    """How a step's trees end: what is added to them, and what stays of them."""

    leaves: Grant  # planted first
    kept: tuple[Sequence[int], ...] | None  # [B] nodes to be verified, ascending, parents among them; None: all


class GateReadings(NamedTuple):
    """One row per request and depth with offers, depths ascending, whether the gate reads them or not. Arrays [M]."""

    request: IntArray
    depth: IntArray
    confidence: FloatArray  # c[i, d] = exp(max S) over the candidates
    unsure: BoolArray  # the thresholds alone would truncate (the random gate ignores them)
    let_through: BoolArray  # the gate did not truncate


class Feedback(NamedTuple):
    """What became of a step's plan."""

    report: "AllocationReport"
    accepted: Sequence[int] | None = None  # [B] accepted nodes per request; None: nobody verified
    verify_seconds: float | None = None  # what the forward took; None: nobody timed it
    draft_seconds: float | None = None  # what drafting took, and granting on the way; None likewise
    explored: bool = False  # another plan was carried out than the policy's (explore.py)


@dataclass(frozen=True)
class AllocationReport:
    """What one step's allocation did, in plain numbers. Arrays are [B] where nothing else is said."""

    num_offered: int  # candidates seen
    frontiers: tuple[int, ...]  # [num_levels] nodes whose children were drafted at each depth, the roots first
    num_nodes: IntArray  # to be verified, widened included
    num_widened: IntArray
    num_dropped: IntArray  # grown, and dropped before verification
    num_transferred: int  # nodes beyond requests' even shares of K_max, at most what truncated requests left of theirs
    gate_truncated: IntArray  # depth before which the gate truncated the request; 0: it did not
    budget_truncated: IntArray  # depth before which the request was truncated for lack of budget; 0: it was not
    price_truncated: IntArray  # depth before which the request was truncated since it did not pay; 0: it was not
    deepened: dict[int, int]  # depth beyond the target depth -> nodes granted while growing
    seen: Seen  # [num_offered] every candidate; nodes as numbered while growing
    chances: FloatArray  # [B, max_depth] of the nodes to be verified at each depth, summed
    parents: FloatArray  # [num_levels] chances of the nodes whose children were drafted, summed
    children: FloatArray  # [num_levels] chances of the likeliest child of each of these, summed
    readings: GateReadings

    @property
    def num_levels(self) -> int:
        """Depths that were drafted."""
        return len(self.frontiers)

    @property
    def expected(self) -> float:
        """Nodes that will be accepted, by their chances."""
        return float(self.chances.sum())

    @property
    def truncated(self) -> BoolArray:
        """[B] requests truncated for any reason (a request is truncated once)."""
        return (self.gate_truncated > 0) | (self.budget_truncated > 0) | (self.price_truncated > 0)

    @property
    def truncated_by_depth(self) -> dict[int, int]:
        """Depth -> requests truncated before it, for any reason."""
        depths = np.maximum.reduce([self.gate_truncated, self.budget_truncated, self.price_truncated])
        return {depth: int(count) for depth, count in enumerate(np.bincount(depths)) if depth and count}
