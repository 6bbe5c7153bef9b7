"""Thresholds for each load bucket: those with which replayed whole steps emit the most tokens per second.

    bucket     K_max / B: batches of B = K_max / load requests share K_max nodes
    step       B positions of the answers, drawn once, so that all thresholds are tried on the same steps
    tokens     B and what the recorded trees of the step's plan have accepted: EchoPolicy's plan, the real Allocation
    seconds    the cost table's, for the verified rows and the drafted levels
    search     checkpoint by checkpoint, from Youden's thresholds, or from none where that is clearly better

Searched on the fitting half of the prompts, tried on the other. Nodes have a price, K_max is fixed (chosen K_max would
tie each step to those before it). Knows no model; the offers are a trace's or those of calibration's own steps.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from calibration.simulate.recorded import RecordedOffers
from calibration.simulate.replay import replay_step
from echo_sched.scheduler.depths import Checkpoint
from echo_sched.scheduler.plan import Load, Plan
from echo_sched.scheduler.policy import PolicySettings, make_policy
from echo_sched.scheduler.profile import ANY_LOAD, Profile
from echo_sched.tree import BoolArray, FloatArray, IntArray

LOADS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # from 64 users to one at the default K_max
CANDIDATES = (10, 25, 40, 55, 70, 85)  # percentiles of a depth's confidences; 0, no gate, is tried too
NUM_POSITIONS = 384  # positions that a bucket's steps hold together
MIN_GAIN = 1.001  # a threshold moves for a throughput that is so many times the present one's
MAX_ROUNDS = 2

Thresholds = dict[int, float]  # checkpoint depth -> threshold


class Positions(NamedTuple):
    """Where steps may begin. Arrays [pools of `recorded`]."""

    recorded: RecordedOffers
    fitting: BoolArray  # of the prompts that thresholds are fitted to
    context: IntArray  # committed tokens


class Speeds(NamedTuple):
    """Tokens per second of the same steps."""

    throughput: float
    youden: float
    no_gate: float


class BucketFit(NamedTuple):
    load: float
    batch_size: int
    thresholds: Thresholds
    fitting: Speeds
    held_out: Speeds | None  # None where the other half has no positions
    curves: dict[int, tuple[tuple[float, float], ...]]  # depth -> (threshold, tokens/s), the others as first chosen


def fit_buckets(
    positions: Positions,
    profile: Profile,
    settings: PolicySettings,
    confidences: Mapping[int, FloatArray],
    *,
    seed: int,
    report: Callable[[int, int], None],
) -> tuple[BucketFit, ...]:
    """One fit per load in LOADS, up to that of a request alone.

    profile: with costs, and with Youden's thresholds as its one bucket. confidences: of the fitting half, by depth.
    """
    assert profile.cost is not None and profile.loads == ANY_LOAD
    youden = {row.depth: row.thresholds[0] for row in profile.checkpoints}
    loads = [load for load in LOADS if load <= settings.k_max]
    found = []
    for number, load in enumerate(loads):
        report(number, len(loads))
        batch_size = round(settings.k_max / load)
        halves = [
            Steps(positions, np.flatnonzero(positions.fitting == fits), batch_size, profile, settings, seed)
            for fits in (True, False)
        ]
        thresholds, curves = search(halves[0].throughput, youden, confidences)
        fitting, held_out = (_speeds(half, thresholds, youden) if half.any else None for half in halves)
        assert fitting is not None, "thresholds were fitted, so there are positions"
        found.append(BucketFit(load, batch_size, thresholds, fitting, held_out, curves))
    report(len(loads), len(loads))
    return tuple(found)


def with_buckets(profile: Profile, buckets: Sequence[BucketFit]) -> Profile:
    """The profile with the thresholds found, per load."""

    def per_load(row: Checkpoint) -> Checkpoint:
        return replace(row, thresholds=tuple(bucket.thresholds[row.depth] for bucket in buckets))

    loads = tuple(bucket.load for bucket in buckets)
    return replace(profile, loads=loads, checkpoints=tuple(map(per_load, profile.checkpoints)))


def search(
    throughput: Callable[[Thresholds], float], youden: Thresholds, confidences: Mapping[int, FloatArray]
) -> tuple[Thresholds, dict[int, tuple[tuple[float, float], ...]]]:
    """Coordinate ascent from the shallowest checkpoint down. A threshold that gains nothing clear stays as it is.

    Returns the thresholds, and what the first round saw at each depth.
    """
    best, rate = youden, throughput(youden)
    open_rate = throughput(dict.fromkeys(youden, 0.0))
    if open_rate > MIN_GAIN * rate:
        best, rate = dict.fromkeys(youden, 0.0), open_rate
    curves: dict[int, tuple[tuple[float, float], ...]] = {}
    for _ in range(MAX_ROUNDS):
        before = best
        for depth in sorted(youden):
            seen = {value: throughput(best | {depth: value}) for value in _candidates(best[depth], confidences[depth])}
            curves.setdefault(depth, tuple(sorted(seen.items())))
            value = max(seen, key=lambda value: seen[value])
            if seen[value] > MIN_GAIN * rate:
                best, rate = best | {depth: value}, seen[value]
        if best == before:
            break
    return best, curves


class Steps:
    """Steps of one batch size over some positions."""

    def __init__(
        self,
        positions: Positions,
        pools: IntArray,
        batch_size: int,
        profile: Profile,
        settings: PolicySettings,
        seed: int,
    ) -> None:
        assert profile.cost is not None
        self.any = pools.size > 0
        self._recorded = positions.recorded
        self._cost = profile.cost
        self._branching = settings.branching
        policy = make_policy(replace(settings, policy="echo", k_max_rule="fixed", gate="sparse", price="on"), profile)
        self._steps: list[tuple[IntArray, Plan, int]] = []
        for number, drawn in enumerate(draw_steps(pools, batch_size, seed)):
            cached = int(positions.context[drawn].sum())
            self._steps.append((drawn, policy.plan(Load(batch_size, number, 0, cached)), cached))

    def throughput(self, thresholds: Thresholds) -> float:
        """Tokens per second."""
        tokens, seconds = 0, 0.0
        for pools, plan, cached in self._steps:
            by_depth = tuple(thresholds.get(depth) for depth in range(1, plan.max_depth + 1))
            caps = np.full(len(pools), self._recorded.max_depth)
            step = replay_step(self._recorded, pools, replace(plan, thresholds=by_depth), caps, self._branching)
            emitted = len(pools) + int(step.accepted.sum())
            tokens += emitted
            seconds += self._cost.seconds_for(len(pools) + int(step.report.num_nodes.sum()), cached)
            seconds += self._cost.drafting.seconds(len(pools), step.report.frontiers, emitted)
        return tokens / seconds


def _speeds(steps: Steps, thresholds: Thresholds, youden: Thresholds) -> Speeds:
    return Speeds(*map(steps.throughput, (thresholds, youden, dict.fromkeys(youden, 0.0))))


def draw_steps(pools: IntArray, batch_size: int, seed: int) -> list[IntArray]:
    """Steps of some of the pools, each as often as any other, but for one time; none where there are none."""
    num_steps = max(1, NUM_POSITIONS // batch_size)
    numbers = np.random.default_rng(seed)
    rounds = [numbers.permutation(pools) for _ in range(-(-num_steps * batch_size // max(len(pools), 1)))]
    return list(np.concatenate(rounds)[: num_steps * batch_size].reshape(num_steps, batch_size)) if pools.size else []


def _candidates(present: float, confidence: FloatArray) -> Collection[float]:
    return sorted({present, 0.0, *np.percentile(confidence, CANDIDATES).tolist()})
