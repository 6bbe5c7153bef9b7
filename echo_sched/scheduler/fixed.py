"""Policies that give every request the same: nothing, one fixed tree, or a beam and the best of what it saw.

The share is floor(K_max / B) nodes. Knows loads, settings and the economy; no gate and no profile.
"""

from itertools import accumulate
from operator import mul

from echo_sched.scheduler.economy import Economy
from echo_sched.scheduler.plan import AllocationReport, Load, Plan
from echo_sched.scheduler.settings import PolicySettings

STATIC_EXPANSION = (
    3,
    2,
    2,
    1,
    1,
)  # children per node at each depth (SpecInfer, ASPLOS 2024): levels of 3, 6, 12, 12, 12


class OffPolicy:
    """Plain decoding."""

    name = "off"

    def plan(self, load: Load) -> Plan:
        """K_max 0, whatever the load."""
        return Plan(k_max=0, max_depth=0, target_depth=0, widths=(), thresholds=())

    def observe(self, load: Load, report: AllocationReport) -> None:
        """Learns nothing."""


class StaticPolicy:
    """SpecInfer's expansion: a fixed number of children per node at each depth, level by level.

    Every request is cut to floor(K_max / B) nodes; what is left of K_max, and what a request cannot use, stays unused.
    """

    name = "static"

    def __init__(self, settings: PolicySettings, economy: Economy) -> None:
        self._settings = settings
        self._economy = economy
        self._children = tuple(min(count, settings.branching) for count in STATIC_EXPANSION[: settings.max_depth])

    def plan(self, load: Load) -> Plan:
        """The same tree for everybody; only its cut depends on the load."""
        max_depth = len(self._children)
        k_max = self._economy.k_max(load)
        return Plan(
            k_max=k_max,
            max_depth=max_depth,
            target_depth=max_depth,
            widths=tuple(accumulate(self._children, mul)),
            thresholds=(None,) * max_depth,
            children=self._children,
            shares=(k_max // max(load.num_requests, 1),) * load.num_requests,
            price=self._economy.price(load, k_max),
        )

    def observe(self, load: Load, report: AllocationReport) -> None:
        self._economy.observe(load, report)


class DynamicPolicy:
    """EAGLE-2's tree (EMNLP 2024): a beam of `branching` nodes per depth, then the best nodes of all that it saw.

    Every request is cut to floor(K_max / B) nodes, as in StaticPolicy; a path can be no longer than that either.
    """

    name = "dynamic"

    def __init__(self, settings: PolicySettings, economy: Economy) -> None:
        self._settings = settings
        self._economy = economy

    def plan(self, load: Load) -> Plan:
        """Growing is free and ends at `max_depth`; only what the rerank keeps is verified."""
        settings, k_max = self._settings, self._economy.k_max(load)
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
            price=self._economy.price(load, k_max),
        )

    def observe(self, load: Load, report: AllocationReport) -> None:
        self._economy.observe(load, report)
