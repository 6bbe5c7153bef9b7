"""From fitted numbers to a profile. Knows no model and no file."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from calibration.acceptance import acceptance_curves
from calibration.categories import CategoryStats
from calibration.throughput import BucketFit, with_buckets
from echo_sched.scheduler.cost import CostTable
from echo_sched.scheduler.depth_fit import DepthFit
from echo_sched.scheduler.depths import Checkpoint, DepthStats
from echo_sched.scheduler.fit import Fit
from echo_sched.scheduler.profile import ANY_LOAD, Identity, Profile
from echo_sched.types import NodeReading


def youden_profile(
    model: Identity,
    drafter: Identity,
    fitted: Fit,
    nodes: Sequence[NodeReading],
    cost: CostTable | None,
    facts: dict[str, Any],
) -> Profile:
    """One threshold per depth for every load."""
    return Profile(
        model=model,
        drafter=drafter,
        target_depth=fitted.target_depth,
        typical_depth=fitted.typical_depth,
        loads=ANY_LOAD,
        checkpoints=tuple(_checkpoint(depth) for depth in fitted.checkpoints),
        no_checkpoint_reason=fitted.no_checkpoint_reason,
        depths=tuple(_stats(depth) for depth in fitted.depths),
        acceptance=acceptance_curves(nodes),
        cost=cost,
        provenance=facts,
    )


def _checkpoint(fit: DepthFit) -> Checkpoint:
    assert fit.threshold is not None, "a depth without a threshold is no checkpoint"
    return Checkpoint(fit.depth, (fit.threshold,), fit.auc, fit.auc_low, fit.auc_high, fit.n)


def _stats(fit: DepthFit) -> DepthStats:
    return DepthStats(
        depth=fit.depth,
        n=fit.n,
        acceptance=fit.acceptance,
        mean_confidence=fit.mean_confidence,
        auc=fit.auc,
        auc_low=fit.auc_low,
        auc_high=fit.auc_high,
        threshold=fit.threshold,
        conditional=fit.conditional,
    )


def with_results(profile: Profile, buckets: Sequence[BucketFit], categories: Sequence[CategoryStats]) -> Profile:
    """The profile with the thresholds of each load, where they were fitted, and with what a reader may ask it later."""
    results = {
        "throughput": [
            {
                "load": bucket.load,
                "batch_size": bucket.batch_size,
                "fitting": bucket.fitting._asdict(),
                "held_out": None if bucket.held_out is None else bucket.held_out._asdict(),
            }
            for bucket in buckets
        ],
        "categories": [
            row._asdict() | {"acceptance": list(row.acceptance), "auc": list(row.auc)} for row in categories
        ],
    }
    fitted = with_buckets(profile, buckets) if buckets else profile
    return replace(fitted, provenance=fitted.provenance | results)
