"""Policies that give every request the same: nothing, a fixed tree, or a beam and the best of what it saw.

The share is floor(K_max / B) nodes. Knows loads, settings and the economy; no gate and no profile.
"""

from itertools import accumulate
from operator import mul

from echo_sched.scheduler.economy import Economy
from echo_sched.scheduler.plan import Feedback, Load, Plan
from echo_sched.scheduler.settings import PolicySettings, Shapes

# Children per node at each depth (SpecInfer, ASPLOS 2024): levels of 3, 6, 12, 12, 12.
STATIC_SHAPE: Shapes = ((1, (3, 2, 2, 1, 1)),)


class OffPolicy:
    """Plain decoding."""

    name = "off"

    def plan(self, load: Load) -> Plan:
        """K_max 0, whatever the load."""
        return Plan(k_max=0, max_depth=0, target_depth=0, widths=(), thresholds=())

    def observe(self, load: Load, feedback: Feedback) -> None:
        """Learns nothing."""


class FixedPolicy:
    """A fixed number of children per node at each depth, level by level; which, only the batch size says.

    Every request is cut to floor(K_max / B) nodes; what is left of K_max, and what a request cannot use, stays unused.
    """

    def __init__(self, name: str, shapes: Shapes, settings: PolicySettings, economy: Economy) -> None:
        """No `branching` or `max_depth` is exceeded, whatever the shapes say."""
        self.name = name
        self._economy = economy
        self._shapes = [
            (batch, tuple(min(count, settings.branching) for count in children[: settings.max_depth]))
            for batch, children in shapes
        ]

    def plan(self, load: Load) -> Plan:
        """The same tree for everybody."""
        fitting = [children for batch, children in self._shapes if batch <= max(load.num_requests, 1)]
        children = fitting[-1]
        max_depth = len(children)
        budget = self._economy.budget(load)
        k_max = budget.k_max if children else 0
        return Plan(
            k_max=k_max,
            max_depth=max_depth,
            target_depth=max_depth,
            widths=tuple(accumulate(children, mul)),
            thresholds=(None,) * max_depth,
            children=children,
            shares=(k_max // max(load.num_requests, 1),) * load.num_requests,
            max_drafting=budget.max_drafting,
            price=self._economy.price(load, k_max),
            acceptance=self._economy.acceptance(load),
        )

    def observe(self, load: Load, feedback: Feedback) -> None:
        self._economy.observe(load, feedback)


class DynamicPolicy:
    """EAGLE-2's tree (EMNLP 2024): a beam of `branching` nodes per depth, then the best nodes of all that it saw.

    Every request is cut to floor(K_max / B) nodes, as in FixedPolicy; a path can be no longer than that either.
    """

    name = "dynamic"

    def __init__(self, settings: PolicySettings, economy: Economy) -> None:
        self._settings = settings
        self._economy = economy

    def plan(self, load: Load) -> Plan:
        """Growing is free and ends at `max_depth`; only what the rerank keeps is verified."""
        settings, budget = self._settings, self._economy.budget(load)
        k_max = budget.k_max
        share = k_max // max(load.num_requests, 1)
        max_depth = min(settings.max_depth, share)
        return Plan(
            k_max=k_max,
            max_depth=max_depth,
            target_depth=max_depth,
            widths=(min(settings.branching, max(share, 1)),) * max_depth,
            thresholds=(None,) * max_depth,
            shares=(share,) * load.num_requests,
            rerank=True,
            max_drafting=budget.max_drafting,
            price=self._economy.price(load, k_max),
            acceptance=self._economy.acceptance(load),
        )

    def observe(self, load: Load, feedback: Feedback) -> None:
        self._economy.observe(load, feedback)
