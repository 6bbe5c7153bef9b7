"""The scheduler of a running engine: the policy in force, what its gate is worth by now, and changes between steps.

Around any policy it does four things: a small share of steps explores (explore.py), what they show is kept (drift.py),
thresholds may follow (adapt.py) or be set by hand, and the policy may be replaced. Knows no HTTP and no engine.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from echo_sched.scheduler.adapt import Adaptation
from echo_sched.scheduler.drift import DepthDrift, Drift
from echo_sched.scheduler.echo import EchoPolicy
from echo_sched.scheduler.explore import explores, ungated
from echo_sched.scheduler.plan import Feedback, Load, Plan
from echo_sched.scheduler.policy import Policy
from echo_sched.scheduler.profile import Profile
from echo_sched.tree import FloatArray

logger = logging.getLogger(__name__)

Thresholds = Mapping[int, float | None]  # depth -> cut-off; None: not read


class LiveState(NamedTuple):
    """What a running scheduler is at, after a step. Counts are since the start."""

    policy: str
    thresholds: dict[int, float]  # in force when the gate was last read
    set_thresholds: dict[int, float | None]  # those of them set by hand or refitted, in the policy's place
    num_steps: int  # with somebody decoding
    num_explored: int
    num_k_max_changes: int  # from one decoding step to the next, probes included
    num_policy_changes: int
    num_refits: int
    drift: tuple[DepthDrift, ...]
    # depth -> log odds by which chances differ from the profile's curves, mean over the requests of the latest step
    # that had any; {}: they do not
    acceptance_shift: dict[int, float]


class Scheduling(NamedTuple):
    """What may be changed while serving, within which limits, and what it has come to."""

    settings: Mapping[str, Any]
    k_max_limit: int
    state: LiveState


class LiveScheduler:
    """A policy that may be replaced, watched through explored steps. `observe` must follow every `plan`, in step order.

    explore: share of steps. adapt: whether thresholds follow the readings.
    """

    def __init__(self, policy: Policy, profile: Profile, *, explore: float, adapt: bool, seed: int) -> None:
        self.policy = policy
        self._drift = Drift(profile)
        self._adaptation = Adaptation()
        self._explore, self._adapt, self._seed = explore, adapt, seed
        self._set: dict[int, float | None] = {}
        self._thresholds: dict[int, float] = {}  # of the latest plan that reads any
        self._k_max: int | None = None  # of the latest decoding step
        self._log_odds: FloatArray | None = None  # [B, max_depth] of the same
        self._num_steps = self._num_explored = self._num_refits = 0
        self._num_k_max_changes = self._num_policy_changes = 0

    def change(self, policy: Policy, thresholds: Thresholds, *, explore: float, adapt: bool) -> None:
        """Go on with another policy. `thresholds` stand in its own thresholds' place; readings of the gate are kept."""
        self.policy, self._set = policy, dict(thresholds)
        self._explore, self._adapt = explore, adapt
        self._thresholds = {}
        self._num_policy_changes += 1

    def plan(self, load: Load) -> Plan:
        plan = self._with_set_thresholds(self.policy.plan(load))
        read = {depth: cut for depth, cut in enumerate(plan.thresholds, start=1) if cut is not None}
        self._thresholds = read or self._thresholds
        if read and explores(self._explore, self._seed, load.step):
            return ungated(plan, load, self._seed)
        return plan

    def observe(self, load: Load, plan: Plan, feedback: Feedback) -> None:
        """What a plan led to, with the accepted nodes."""
        if load.num_requests:
            self._num_steps += 1
            self._num_k_max_changes += self._k_max not in (None, plan.k_max)
            self._k_max = plan.k_max
            self._log_odds = plan.acceptance.log_odds
        self.policy.observe(load, feedback._replace(explored=plan.explored))
        if not plan.explored:
            return
        assert feedback.accepted is not None, "a served step verifies"
        self._num_explored += 1
        self._drift.observe(self._thresholds, feedback.report, feedback.accepted)
        if self._adapt:
            self._refit()

    @property
    def set_thresholds(self) -> Thresholds:
        return self._set

    @property
    def state(self) -> LiveState:
        return LiveState(
            policy=self.policy.name,
            thresholds=self._thresholds,
            set_thresholds=self._set,
            num_steps=self._num_steps,
            num_explored=self._num_explored,
            num_k_max_changes=self._num_k_max_changes,
            num_policy_changes=self._num_policy_changes,
            num_refits=self._num_refits,
            drift=self._drift.depths,
            acceptance_shift={} if self._log_odds is None else _by_depth(self._log_odds),
        )

    def _with_set_thresholds(self, plan: Plan) -> Plan:
        if not self._set or self.policy.name != EchoPolicy.name:  # no other policy has a gate
            return plan
        own = enumerate(plan.thresholds, start=1)
        return replace(plan, thresholds=tuple(self._set.get(depth, threshold) for depth, threshold in own))

    def _refit(self) -> None:
        for depth, threshold in self._adaptation.refits(self._drift.columns).items():
            if depth in self._thresholds:
                logger.info("depth %d: threshold %.3f becomes %.3f", depth, self._thresholds[depth], threshold)
                self._set = {**self._set, depth: threshold}
                self._num_refits += 1


def _by_depth(log_odds: FloatArray) -> dict[int, float]:
    return dict(enumerate(log_odds.mean(axis=0).tolist(), start=1))
