"""The policy `echo`: base tree, gate at checkpoint depths, budget moving to whoever is confident.

After ECHO (arXiv 2604.09603), as reported; the ablations are settings. Knows loads, settings and the profile.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from echo_sched.scheduler.economy import Economy
from echo_sched.scheduler.order import even_shares
from echo_sched.scheduler.plan import AllocationReport, Load, Plan
from echo_sched.scheduler.profile import Checkpoint, DepthStats, Profile
from echo_sched.scheduler.random_gate import TruncationRates
from echo_sched.scheduler.settings import PolicySettings


class EchoPolicy:
    """ECHO's scheduling. Per step r = K_max / B and the level width w0 = clamp(floor(r / D_typ), 1, branching).

    Nothing in the plan holds requests at the target depth: one that its checkpoint truncates goes no further, and where
    the profile lists no checkpoint at the target depth there is nothing to read and requests go beyond it within the
    budget.
    """

    name = "echo"

    def __init__(self, settings: PolicySettings, profile: Profile, economy: Economy) -> None:
        self._settings = settings
        self._economy = economy
        self._typical_depth = profile.typical_depth
        self._target_depth = min(profile.target_depth, settings.max_depth)
        thresholds = gate_thresholds(settings, profile)
        self._thresholds = tuple(thresholds.get(depth) for depth in range(1, settings.max_depth + 1))
        self._rates = TruncationRates(self._thresholds) if settings.gate == "random" else None

    def plan(self, load: Load) -> Plan:
        settings, budget = self._settings, self._economy.budget(load)
        k_max = budget.k_max
        width = int(k_max / max(load.num_requests, 1) / self._typical_depth)
        even = None if settings.transfer == "on" else tuple(even_shares(k_max, load.num_requests).tolist())
        return Plan(
            k_max=k_max,
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
            max_drafting=budget.max_drafting,
            price=self._economy.price(load, k_max),
        )

    def observe(self, load: Load, report: AllocationReport) -> None:
        """The random gate learns how often the sparse gate would have truncated."""
        self._economy.observe(load, report)
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
