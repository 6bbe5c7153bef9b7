"""Which K_max the economy settles on, by batch size: the real policy on replayed steps. For the report only."""

import numpy as np

from calibration.simulate.replay import replay_step
from calibration.throughput import Positions, draw_steps
from echo_sched.scheduler.plan import Feedback, Load
from echo_sched.scheduler.policy import PolicySettings, make_policy
from echo_sched.scheduler.profile import Profile

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
NUM_STEPS = 48  # K_max moves every eighth step at most


def chosen_k_max(positions: Positions, profile: Profile, settings: PolicySettings) -> dict[int, int]:
    """Batch size -> K_max in the middle of the later half of NUM_STEPS steps, at most as set."""
    return {batch: _settled(positions, profile, settings, batch) for batch in BATCH_SIZES}


def _settled(positions: Positions, profile: Profile, settings: PolicySettings, batch_size: int) -> int:
    recorded = positions.recorded
    policy = make_policy(settings, profile)
    drawn = draw_steps(np.arange(recorded.num_pools), batch_size, settings.seed)
    chosen = []
    for number in range(NUM_STEPS):
        pools = drawn[number % len(drawn)]
        load = Load(batch_size, number, 0, int(positions.context[pools].sum()))
        plan = policy.plan(load)
        caps = np.full(batch_size, recorded.max_depth)
        accepted, report, _ = replay_step(recorded, pools, plan, caps, settings.branching)
        policy.observe(load, Feedback(report, accepted.tolist()))
        chosen.append(plan.k_max)
    return int(np.median(chosen[NUM_STEPS // 2 :]))
