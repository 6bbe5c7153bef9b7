"""The plain values between the loop, a policy and an allocation: Load -> Plan -> Grant ... -> AllocationReport.

Data only. A plan is all an allocation knows of the policy that wrote it, so that every policy, ablations included,
drives the same code. B is the number of decoding requests of the step; requests are named by index, in arrival order.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

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
    max_drafting: int | None = None  # most requests that draft, the shortest first; None: all
    verify: bool = True  # False: trees are drafted for what can be learned from them, and dropped
    explored: bool = False  # no gate, full trees for requests drawn by lot (explore.py)

    def __post_init__(self) -> None:
        assert self.k_max >= 0 and self.max_depth >= 0
        assert len(self.widths) == len(self.thresholds) == self.max_depth and all(width >= 1 for width in self.widths)
        assert self.children is None or len(self.children) == self.max_depth
        assert self.truncation_rates is None or len(self.truncation_rates) == self.max_depth
        assert self.shares is None or sum(self.shares) <= self.k_max
        assert self.price is None or len(self.price.verify_seconds) == self.k_max + 1
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
    kept: tuple[IntArray, ...] | None  # [B] nodes to be verified, ascending, parents among them; None: all


class GateReadings(NamedTuple):
    """One row per request and depth with offers, depths ascending, whether the gate reads them or not. Arrays [M]."""

    request: IntArray
    depth: IntArray
    confidence: FloatArray  # c[i, d] = exp(max S) over the candidates
    unsure: BoolArray  # the thresholds alone would truncate (the random gate ignores them)
    let_through: BoolArray  # the gate did not truncate


@dataclass(frozen=True)
class AllocationReport:
    """What one step's allocation did, in plain numbers. Arrays are [B] where nothing else is said."""

    num_offered: int  # candidates seen
    num_levels: int  # depths that were drafted
    num_nodes: IntArray  # to be verified, widened included
    num_widened: IntArray
    num_dropped: IntArray  # grown, and dropped before verification
    num_transferred: int  # nodes beyond requests' even shares of K_max, at most what truncated requests left of theirs
    gate_truncated: IntArray  # depth before which the gate truncated the request; 0: it did not
    budget_truncated: IntArray  # depth before which the request was truncated for lack of budget; 0: it was not
    price_truncated: IntArray  # depth before which the request was truncated since it did not pay; 0: it was not
    deepened: dict[int, int]  # depth beyond the target depth -> nodes granted while growing
    seen: Seen  # [num_offered] every candidate; nodes as numbered while growing
    expected: float  # nodes that will be accepted, by their chances
    readings: GateReadings

    @property
    def truncated(self) -> BoolArray:
        """[B] requests truncated for any reason (a request is truncated once)."""
        return (self.gate_truncated > 0) | (self.budget_truncated > 0) | (self.price_truncated > 0)

    @property
    def truncated_by_depth(self) -> dict[int, int]:
        """Depth -> requests truncated before it, for any reason."""
        depths = np.maximum.reduce([self.gate_truncated, self.budget_truncated, self.price_truncated])
        return {depth: int(count) for depth, count in enumerate(np.bincount(depths)) if depth and count}
