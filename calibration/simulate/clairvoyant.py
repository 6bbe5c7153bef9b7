"""How much of what foresight could gain a policy gains, at the same K_max on the same recorded candidates.

    share = (policy - equal split) / (clairvoyant - equal split)         in accepted tokens per step

A step is B positions of the trace; every rule gets the same steps, and speed plays no part: nodes have no price here.

    clairvoyant    spends K_max on the recorded accepted paths, so it gets as many tokens as they have, K_max at most
    equal split    every request an even share of K_max, spent on the likeliest nodes it has
    random         candidates by chance, parents before children, whoever they belong to
"""

from collections.abc import Mapping, Sequence

import numpy as np

from calibration.simulate.recorded import RecordedOffers
from calibration.simulate.replay import replay_step
from echo_sched.scheduler.order import even_shares
from echo_sched.scheduler.plan import Feedback, Load, Plan
from echo_sched.scheduler.policy import Policy
from echo_sched.tree import FloatArray, IntArray

BUDGETS = (0.5, 1.0, 2.0, 4.0, 8.0)  # K_max / B
NUM_STEPS = 16


def draw_steps(recorded: RecordedOffers, batch_size: int, seed: int) -> list[IntArray]:
    """NUM_STEPS batches of pools, each pool as often as any other, but for one time."""
    needed = NUM_STEPS * batch_size
    numbers = np.random.default_rng(seed)
    rounds = [numbers.permutation(recorded.num_pools) for _ in range(-(-needed // recorded.num_pools))]
    return list(np.concatenate(rounds)[:needed].reshape(NUM_STEPS, batch_size))


def accepted_per_step(recorded: RecordedOffers, steps: Sequence[IntArray], policy: Policy, max_children: int) -> float:
    """Accepted tokens per step of a policy, which is told what its plans led to as if it served."""
    total = 0
    for number, pools in enumerate(steps):
        load = Load(len(pools), number)
        caps = np.full(len(pools), recorded.max_depth)
        accepted, report, _ = replay_step(recorded, pools, policy.plan(load), caps, max_children)
        policy.observe(load, Feedback(report, accepted.tolist()))
        total += int(accepted.sum())
    return total / len(steps)


def yardsticks(recorded: RecordedOffers, steps: Sequence[IntArray], k_max: int, seed: int) -> dict[str, float]:
    """Accepted tokens per step of the rules that policies are held against."""
    numbers = np.random.default_rng(seed)
    foreseen = [min(k_max, int(recorded.num_accepted[pools].sum())) for pools in steps]
    equal = _EqualSplit(k_max, recorded.max_depth, recorded.max_children)
    return {
        "equal_split": accepted_per_step(recorded, steps, equal, recorded.max_children),
        "random": sum(_by_chance(recorded, pools, k_max, numbers) for pools in steps) / len(steps),
        "clairvoyant": sum(foreseen) / len(steps),
    }


def share(value: float, rules: Mapping[str, float]) -> float | None:
    """(policy - equal split) / (clairvoyant - equal split); None where foresight gains nothing."""
    possible = rules["clairvoyant"] - rules["equal_split"]
    return (value - rules["equal_split"]) / possible if possible > 0 else None


class _EqualSplit:
    """Even shares, and of each request's candidates the likeliest."""

    name = "equal split"

    def __init__(self, k_max: int, max_depth: int, branching: int) -> None:
        self._k_max = k_max
        self._max_depth = max_depth
        self._branching = branching

    def plan(self, load: Load) -> Plan:
        return Plan(
            k_max=self._k_max,
            max_depth=self._max_depth,
            target_depth=self._max_depth,
            widths=(self._branching,) * self._max_depth,
            thresholds=(None,) * self._max_depth,
            shares=tuple(even_shares(self._k_max, load.num_requests).tolist()),
            rerank=True,
        )

    def observe(self, load: Load, feedback: Feedback) -> None:
        """Learns nothing."""


def _by_chance(recorded: RecordedOffers, pools: IntArray, k_max: int, numbers: np.random.Generator) -> int:
    """Accepted among the first `k_max` candidates in an order that chance decides; children come after parents."""
    rows = np.concatenate([recorded.rows_of(pool) for pool in pools.tolist()])
    draws = numbers.random(len(rows))
    turn: FloatArray = np.zeros(len(recorded.token))
    turn[rows] = draws
    for depth in range(1, recorded.max_depth):
        parents = rows[(recorded.depth[rows] == depth) & recorded.drafted[rows]]
        child, count = recorded.children(np.zeros_like(parents), parents, recorded.max_children)
        turn[child] = np.maximum(turn[child], np.repeat(turn[parents], count))
    served = rows[np.lexsort((recorded.depth[rows], turn[rows]))[:k_max]]
    return int(recorded.accepted[served].sum())
