"""Policies: the rules that turn a step's load into a plan.

off      no trees: plain decoding at plain decoding's price
static   one fixed tree per request, cut to an even share of K_max
echo     base tree, gate at checkpoint depths, budget moving to whoever is confident (after ECHO, arXiv 2604.09603, as
         reported); its ablations are settings

A policy writes plans and nothing else; every plan is carried out by the same Allocation. Knows no drafter and no model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Literal, Protocol

import numpy as np

from echo_sched.errors import ConfigError
from echo_sched.scheduler.budget import even_shares
from echo_sched.scheduler.gate import GateScope
from echo_sched.scheduler.plan import AllocationReport, Load, Plan, WidenScope
from echo_sched.scheduler.profile import Checkpoint, DepthStats, Profile
from echo_sched.scheduler.random_gate import TruncationRates

__all__ = ["Load", "Plan", "Policy", "PolicySettings", "make_policy"]

STATIC_EXPANSION = (
    3,
    2,
    2,
    1,
    1,
)  # children per node at each depth (SpecInfer, ASPLOS 2024): levels of 3, 6, 12, 12, 12


@dataclass(frozen=True)
class PolicySettings:
    """What a user may decide about scheduling; names, values and defaults are those of the engine's settings.

    Raises ConfigError, naming the setting, for a number out of range.
    """

    policy: Literal["off", "static", "echo"] = "echo"
    k_max: int = 32
    max_depth: int = 8
    branching: int = 4
    gate: Literal["sparse", "dense", "none", "random"] = "sparse"
    gate_scope: GateScope = "request"
    thresholds: Literal["per-depth", "single"] = "per-depth"
    transfer: Literal["on", "off"] = "on"
    widen: Literal["on", "off"] = "on"
    widen_scope: WidenScope = "all"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, minimum in (("k_max", 0), ("max_depth", 1), ("branching", 1), ("seed", 0)):
            if getattr(self, name) < minimum:
                raise ConfigError(f"{name} must be at least {minimum}, got {getattr(self, name)}")


class Policy(Protocol):
    """Plans each step from its load. `observe` must be told what every plan led to, in step order."""

    name: str

    def plan(self, load: Load) -> Plan: ...

    def observe(self, report: AllocationReport) -> None: ...


def make_policy(settings: PolicySettings, profile: Profile) -> Policy:
    """The policy that `settings` name. Raises ConfigError for an unknown name."""
    if settings.policy == "off":
        return OffPolicy()
    if settings.policy == "static":
        return StaticPolicy(settings)
    if settings.policy == "echo":
        return EchoPolicy(settings, profile)
    raise ConfigError(f"unknown policy {settings.policy!r}; known: off, static, echo")


class OffPolicy:
    """Plain decoding."""

    name = "off"

    def plan(self, load: Load) -> Plan:
        """K_max 0, whatever the load."""
        return Plan(k_max=0, max_depth=0, target_depth=0, widths=(), thresholds=())

    def observe(self, report: AllocationReport) -> None:
        """Learns nothing."""


class StaticPolicy:
    """SpecInfer's expansion: a fixed number of children per node at each depth, level by level.

    Every request is cut to floor(K_max / B) nodes; what is left of K_max, and what a request cannot use, stays unused.
    """

    name = "static"

    def __init__(self, settings: PolicySettings) -> None:
        self._settings = settings
        self._children = tuple(min(count, settings.branching) for count in STATIC_EXPANSION[: settings.max_depth])

    def plan(self, load: Load) -> Plan:
        """The same tree for everybody; only its cut depends on the load."""
        max_depth = len(self._children)
        k_max = self._settings.k_max
        return Plan(
            k_max=k_max,
            max_depth=max_depth,
            target_depth=max_depth,
            widths=tuple(accumulate(self._children, mul)),
            thresholds=(None,) * max_depth,
            children=self._children,
            shares=(k_max // max(load.num_requests, 1),) * load.num_requests,
        )

    def observe(self, report: AllocationReport) -> None:
        """Learns nothing."""


class EchoPolicy:
    """ECHO's scheduling. Per step r = K_max / B and the level width w0 = clamp(floor(r / D_typ), 1, branching).

    Nothing in the plan holds requests at the target depth: one that its checkpoint truncates goes no further, and where
    the profile lists no checkpoint at the target depth there is nothing to read and requests go beyond it within the
    budget.
    """

    name = "echo"

    def __init__(self, settings: PolicySettings, profile: Profile) -> None:
        self._settings = settings
        self._typical_depth = profile.typical_depth
        self._target_depth = min(profile.target_depth, settings.max_depth)
        thresholds = gate_thresholds(settings, profile)
        self._thresholds = tuple(thresholds.get(depth) for depth in range(1, settings.max_depth + 1))
        self._rates = TruncationRates(self._thresholds) if settings.gate == "random" else None

    def plan(self, load: Load) -> Plan:
        settings = self._settings
        width = int(settings.k_max / max(load.num_requests, 1) / self._typical_depth)
        even = None if settings.transfer == "on" else tuple(even_shares(settings.k_max, load.num_requests).tolist())
        return Plan(
            k_max=settings.k_max,
            max_depth=settings.max_depth,
            target_depth=self._target_depth,
            widths=(min(max(width, 1), settings.branching),) * settings.max_depth,
            thresholds=self._thresholds,
            truncation_rates=None if self._rates is None else self._rates.by_depth(),
            random_key=(settings.seed, load.step),
            gate_scope=settings.gate_scope,
            shares=even,
            widen=settings.widen == "on",
            widen_scope=settings.widen_scope,
        )

    def observe(self, report: AllocationReport) -> None:
        """Only the random gate learns: how often the sparse gate would have truncated."""
        if self._rates is not None:
            self._rates.observe(report)


def gate_thresholds(settings: PolicySettings, profile: Profile) -> Mapping[int, float]:
    """Depth -> threshold, for the depths that the gate reads.

    sparse and random: the profile's checkpoints, none invented. dense: every depth for which the profile has a
    threshold. none: nothing. `thresholds` "single" puts one number at each of them: their mean, weighted by the number
    of readings behind each (plain where nothing was measured).
    """
    rows: Mapping[str, Sequence[Checkpoint | DepthStats]] = {
        "sparse": profile.checkpoints,
        "random": profile.checkpoints,
        "dense": profile.depths,
        "none": (),
    }
    read = [(row.depth, row.threshold, row.n) for row in rows[settings.gate] if row.threshold is not None]
    if settings.thresholds == "single" and read:
        _, values, counts = zip(*read, strict=True)
        single = float(np.average(values, weights=counts if sum(counts) else None))
        return {depth: single for depth, _, _ in read}
    return {depth: threshold for depth, threshold, _ in read}
