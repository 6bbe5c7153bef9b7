"""What one step has bought: nodes by request, the chances they bring, and how much room is left in K_max.

Where the plan has a price, only what is claimed is bought without raising the tokens expected per second. Knows no
candidates and no order among them.
"""

from collections.abc import Sequence

import numpy as np

from echo_sched.scheduler.order import rank_within
from echo_sched.scheduler.plan import Plan
from echo_sched.tree import FloatArray, IntArray


class Account:
    """Of B requests. `free`: nodes are numbered and counted, but take no room and need not be worth anything."""

    def __init__(self, plan: Plan, num_requests: int, *, free: bool = False) -> None:
        self.num_nodes = np.zeros(num_requests, np.int64)
        self.gained = 0.0  # chances of the nodes, summed
        self._charged: list[tuple[IntArray, FloatArray]] = []  # (request * max_depth + depth - 1, chance) [G]
        self._plan = plan
        self._free = free

    @property
    def gained_at(self) -> FloatArray:
        """[B, max_depth] chances of the nodes, summed by request and depth."""
        shape = len(self.num_nodes), self._plan.max_depth
        summed = np.zeros(shape[0] * shape[1])
        for place, chance in self._charged:
            summed += np.bincount(place, chance, len(summed))
        return summed.reshape(shape)

    @property
    def gained_by(self) -> FloatArray:
        """[B] the same by request."""
        summed: FloatArray = self.gained_at.sum(axis=1)
        return summed

    @property
    def num_paid(self) -> int:
        return 0 if self._free else int(self.num_nodes.sum())

    def room(self, frontiers: Sequence[int]) -> int:
        """Nodes that may yet be bought, R, beside the drafting of levels below so many nodes each, the roots first."""
        plan, price = self._plan, self._plan.price
        most = plan.k_max if price is None else min(plan.k_max, price.most_nodes(price.drafting_seconds(frontiers)))
        return most - self.num_paid

    def num_bought(self, chances: FloatArray, num_claimed: int, frontiers: Sequence[int]) -> int:
        """How many of the affordable nodes [G] are worth it, beside the claimed ones before them and such drafting."""
        price = self._plan.price
        if price is None or self._free:
            return len(chances)
        gained = self.gained + float(chances[:num_claimed].sum())
        num_nodes = self.num_paid + num_claimed
        return num_claimed + price.best_count(
            gained, chances[num_claimed:], num_nodes, price.drafting_seconds(frontiers)
        )

    def charge(self, request: IntArray, depth: IntArray, chance: FloatArray) -> IntArray:
        """Pay for nodes [G]. Returns their numbers [G]: a request's k-th node is node k."""
        node: IntArray = self.num_nodes[request] + rank_within(request)
        self.pay(request, depth, chance)
        return node

    def pay(self, request: IntArray, depth: IntArray, chance: FloatArray) -> None:
        """Pay for nodes [G] that have their numbers."""
        self.num_nodes = self.num_nodes + np.bincount(request, minlength=len(self.num_nodes))
        self.gained += float(chance.sum())
        self._charged.append((request * self._plan.max_depth + depth - 1, chance))
