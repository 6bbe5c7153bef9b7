"""From calibration's own steps to thresholds per load: gathers what throughput.py searches on."""

import argparse
from collections.abc import Sequence

import numpy as np

from calibration.collect import Trace
from calibration.progress import progress
from calibration.record import offer_trace
from calibration.simulate.recorded import RecordedOffers
from calibration.throughput import BucketFit, Positions, fit_buckets
from echo_sched.config import EngineConfig
from echo_sched.loop import DecodeLoop
from echo_sched.scheduler.fit import Fit
from echo_sched.scheduler.policy import PolicySettings
from echo_sched.scheduler.profile import Profile
from echo_sched.types import Request


def serving_settings(args: argparse.Namespace, config: EngineConfig) -> PolicySettings:
    """The scheduling that thresholds are fitted for."""
    return PolicySettings(k_max=args.k_max, max_depth=config.max_depth, branching=config.branching, seed=args.seed)


def positions_of(loop: DecodeLoop, requests: Sequence[Request], trace: Trace, fitted: Fit) -> Positions:
    """Where calibration's own steps began: behind a bonus token, as steps in service do."""
    pools = tuple(tuple(pool for _, pool in of_request) for of_request in trace.pools)
    placed = [
        (request.request_id in fitted.fitting, len(request.prompt_ids) + position)
        for request, of_request in zip(requests, trace.pools, strict=True)
        for position, _ in of_request
    ]
    fitting, context = zip(*placed, strict=True)
    recorded = RecordedOffers(offer_trace(loop, requests, pools, {}))
    return Positions(recorded, np.array(fitting, np.bool_), np.array(context, np.int64))


def buckets_of(
    threshold_rule: str,
    settings: PolicySettings,
    positions: Positions,
    profile: Profile,
    trace: Trace,
    fitted: Fit,
) -> tuple[BucketFit, ...]:
    """Thresholds per load, where they are asked for and there is a checkpoint."""
    if threshold_rule == "youden" or not profile.checkpoints:
        return ()
    confidences = {
        row.depth: np.array(
            [r.confidence for r in trace.readings if r.depth == row.depth and r.request_id in fitted.fitting]
        )
        for row in profile.checkpoints
    }
    with progress("trying thresholds on replayed steps (loads)") as report:
        return fit_buckets(positions, profile, settings, confidences, seed=settings.seed, report=report)
