"""Who is served first when the budget is scarce: floors, latency targets and priorities of one step's requests.

A request's nodes, best first, fall into three tiers: those within its floor; those that its latency target needs
("first what each request's target needs, then the best global use", after AdaServe, arXiv 2501.12162); and the rest.
Lower tiers are served first, and the first two are bought whatever their price. Inside a tier nodes of all requests are
ordered by chance times priority. Knows no gate and no drafter.
"""

from typing import NamedTuple, Protocol

import numpy as np

from echo_sched.scheduler.order import rank_within
from echo_sched.tree import BoolArray, FloatArray, IntArray

FLOOR, TARGET, REST = 0, 1, 2  # tiers
# A target claims at most so many even shares of K_max, and at most half of it: what is hopeless must not take
# everything with unlikely nodes.
TARGET_SHARES, TARGET_PART = 4, 2


class Pace(NamedTuple):
    """How decoding requests keep to their latency targets. Arrays [B]."""

    target: FloatArray  # seconds per token; inf: the request has no target
    elapsed: FloatArray  # seconds since the first token
    num_tokens: IntArray  # emitted since then

    def tokens_needed(self, step_seconds: float) -> FloatArray:
        """[B] tokens beyond the root's own that keep a request to its target, after a step of `step_seconds`."""
        due = (self.elapsed + step_seconds) / self.target
        return np.maximum(due - self.num_tokens - 1.0, 0.0)


class Held(Protocol):
    """What requests have by now. Arrays [B]. `gained_by` may take some time, and is asked for only if need be."""

    num_nodes: IntArray

    @property
    def gained_by(self) -> FloatArray:
        """Chances of the nodes, summed."""


class Fairness(NamedTuple):
    """What a plan says of its B requests."""

    weight: FloatArray  # [B] priority, above 0
    floor: int  # nodes that every request gets before others get more
    need: FloatArray  # [B] accepted nodes that its target needs; 0: none
    most_claimed: int  # nodes of a request that its target may claim

    @staticmethod
    def neutral(num_requests: int) -> "Fairness":
        """Everybody alike, nobody first."""
        return Fairness(np.ones(num_requests), 0, np.zeros(num_requests), 0)

    @staticmethod
    def of(
        num_requests: int,
        k_max: int,
        *,
        floor: int = 0,
        weight: FloatArray | None = None,
        need: FloatArray | None = None,
    ) -> "Fairness":
        """The floor is at most an even share of K_max, so that K_max has room for everybody's."""
        share, neutral = k_max // max(num_requests, 1), Fairness.neutral(num_requests)
        return Fairness(
            neutral.weight if weight is None else weight,
            min(floor, share),
            neutral.need if need is None else need,
            max(1, min(TARGET_SHARES * max(share, 1), k_max // TARGET_PART)),
        )

    @property
    def claims(self) -> bool:
        """Whether any node can be of a tier before the rest."""
        return self.floor > 0 or bool(self.need.any())

    def in_need(self, held: Held) -> BoolArray:
        """[B] whose target needs more than it has, and may claim it."""
        if not self.need.any():
            return np.zeros(len(self.need), np.bool_)
        return (held.gained_by < self.need) & (held.num_nodes < self.most_claimed)

    def reserved(self, num_nodes: IntArray, num_spare: IntArray, going: BoolArray) -> int:
        """Nodes to keep for floors that are not reached: all that is missing where a tree goes on, else what may yet
        be chosen of the candidates that were seen and not granted. Arrays [B]."""
        missing = np.maximum(self.floor - num_nodes, 0)
        return int(np.where(going, missing, np.minimum(missing, num_spare)).sum())

    def tiers(self, request: IntArray, chance: FloatArray, held: Held) -> IntArray:
        """[C] tiers of candidates, which come best first, beside what requests have.

        A request's tiers never fall, so a tier's end never parts a node from its parent.
        """
        if not self.claims:
            return np.full(len(request), REST)
        count = held.num_nodes[request] + rank_within(request)
        before = held.gained_by[request] + _sum_within(request, chance)
        needed = (before < self.need[request]) & (count < self.most_claimed)  # `in_need`, by candidate
        return np.where(count < self.floor, FLOOR, np.where(needed, TARGET, REST))


def _sum_within(group: IntArray, values: FloatArray) -> FloatArray:
    """[n] sum of the earlier values of the same group."""
    order = np.argsort(group, kind="stable")
    total = np.cumsum(values[order]) - values[order]
    begins = np.flatnonzero(np.diff(group[order], prepend=-1))
    lengths = np.diff(np.append(begins, len(group)))
    sums = np.empty(len(group))
    sums[order] = total - np.repeat(total[begins], lengths)
    return sums
