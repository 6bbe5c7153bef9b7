"""The policy `echo`: base tree, gate at checkpoint depths, budget moving to whoever is confident.

After ECHO (arXiv 2604.09603), as reported; the ablations are settings. Knows loads, settings and the profile.
"""

from collections.abc import Mapping

import numpy as np

from echo_sched.scheduler.economy import Economy
from echo_sched.scheduler.order import even_shares
from echo_sched.scheduler.plan import Feedback, Load, Plan
from echo_sched.scheduler.profile import Profile
from echo_sched.scheduler.random_gate import TruncationRates
from echo_sched.scheduler.settings import PolicySettings


class EchoPolicy:
    """ECHO's scheduling. Per step r = K_max / B and the level width w0 = clamp(floor(r / D_typ), 1, branching).

    Nothing in the plan holds requests at the target depth: one that its checkpoint truncates goes no further, and where
    the profile lists no checkpoint at the target depth there is nothing to read and requests go beyond it within the
    budget.

    Thresholds are those of the step's load bucket. The load is the *setting* K_max / B, also where K_max is chosen step
    by step: then only the batch size moves it, and a gate cannot change the very budget that its thresholds hang on.
    """

    name = "echo"

    def __init__(self, settings: PolicySettings, profile: Profile, economy: Economy) -> None:
        self._settings = settings
        self._economy = economy
        self._typical_depth = profile.typical_depth
        self._target_depth = min(profile.target_depth, settings.max_depth)
        self._load_bucket = profile.load_bucket
        self._thresholds = [
            tuple(map(gate_thresholds(settings, profile, bucket).get, range(1, settings.max_depth + 1)))
            for bucket in range(len(profile.loads))
        ]
        self._rates = [TruncationRates(thresholds) for thresholds in self._thresholds]

    def plan(self, load: Load) -> Plan:
        settings, budget = self._settings, self._economy.budget(load)
        k_max, bucket = budget.k_max, self._bucket(load)
        width = int(k_max / max(load.num_requests, 1) / self._typical_depth)
        even = None if settings.transfer == "on" else tuple(even_shares(k_max, load.num_requests).tolist())
        return Plan(
            k_max=k_max,
            max_depth=settings.max_depth,
            target_depth=self._target_depth,
            widths=(min(max(width, 1), settings.branching),) * settings.max_depth,
            thresholds=self._thresholds[bucket],
            truncation_rates=self._rates[bucket].by_depth() if settings.gate == "random" else None,
            random_key=(settings.seed, load.step),
            gate_scope=settings.gate_scope,
            shares=even,
            widen=settings.widen == "on",
            widen_scope=settings.widen_scope,
            max_drafting=budget.max_drafting,
            price=self._economy.price(load, k_max),
            acceptance=self._economy.acceptance(load),
            fairness=load.fairness(settings.node_floor, k_max) if even is None else None,
        )

    def observe(self, load: Load, feedback: Feedback) -> None:
        """The random gate learns how often the sparse gate would have truncated at such a load."""
        self._economy.observe(load, feedback)
        if self._settings.gate == "random" and not feedback.explored:
            self._rates[self._bucket(load)].observe(feedback.report)

    def _bucket(self, load: Load) -> int:
        return self._load_bucket(self._settings.k_max / max(load.num_requests, 1))


def gate_thresholds(settings: PolicySettings, profile: Profile, bucket: int) -> Mapping[int, float]:
    """Depth -> threshold in a load bucket, for the depths that the gate reads.

    sparse and random: the profile's checkpoints, none invented. dense: every depth for which the profile has a
    threshold; that of a checkpoint is the same as sparse's. none: nothing. `thresholds` "single" puts one number at
    each of them: their mean, weighted by the number of readings behind each (plain where nothing was measured).
    """
    read = {row.depth: (row.thresholds[bucket], row.n) for row in profile.checkpoints if settings.gate != "none"}
    if settings.gate == "dense":
        others = {row.depth: (row.threshold, row.n) for row in profile.depths if row.threshold is not None}
        read = others | read
    if settings.thresholds == "single" and read:
        values, counts = zip(*read.values(), strict=True)
        single = float(np.average(values, weights=counts if sum(counts) else None))
        return dict.fromkeys(read, single)
    return {depth: threshold for depth, (threshold, _) in read.items()}
