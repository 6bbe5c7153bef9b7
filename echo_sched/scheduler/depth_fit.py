"""One depth's numbers, and whether they make it a checkpoint. See fit.py for what is fitted on which half."""

from typing import Literal, NamedTuple

import numpy as np

from echo_sched.scheduler.depths import Conditional
from echo_sched.scheduler.separation import INTERVAL, Column, auc, auc_interval, separation, youden_threshold
from echo_sched.tree import BoolArray, FloatArray, IntArray

CheckpointRule = Literal["auc", "drop"]
DEFAULT_AUC_CUT = 0.6  # the lower end of the interval must reach it; 0.5 is a coin
DEFAULT_DROP_CUT = 0.05  # likewise, in conditional acceptance
MIN_READINGS = 50  # fewer readings at a depth decide nothing
MIN_PROMPTS = 8  # a bootstrap over fewer clusters understates its own spread


class DepthFit(NamedTuple):
    """One depth. Rates and AUC are in [0, 1]; None where they are undefined."""

    depth: int
    n: int  # requests, over all steps, that had offers at this depth
    acceptance: float  # share of them whose accepted path reached it
    mean_confidence: float
    auc: float | None
    auc_low: float | None
    auc_high: float | None
    threshold: float | None  # the gate lets c > threshold pass
    held_out_j: float | None  # sensitivity + specificity - 1 on prompts that fitted nothing
    conditional: Conditional  # the same among requests whose path reached the depth above
    drop: float | None  # the depth above's conditional acceptance, 1 for the root's, minus this depth's
    drop_low: float | None  # 95 % interval, as of the AUC
    drop_high: float | None
    rejection: str | None  # why it is no checkpoint


class Cut(NamedTuple):
    """What a depth must surely reach."""

    rule: CheckpointRule
    value: float


def fit_depth(depth: int, column: Column, fitting: BoolArray, resamples: IntArray) -> DepthFit:
    """All but what needs the depth above (with_drop) and the verdict (rejection)."""
    confidence, accepted = column.confidence, column.accepted
    fits = fitting[column.prompt]
    low, high = auc_interval(column, resamples)
    threshold = youden_threshold(confidence[fits], accepted[fits])
    return DepthFit(
        depth=depth,
        n=len(confidence),
        acceptance=float(accepted.mean()),
        mean_confidence=float(confidence.mean()),
        auc=auc(confidence, accepted),
        auc_low=low,
        auc_high=high,
        threshold=threshold,
        held_out_j=None if threshold is None else separation(confidence[~fits], accepted[~fits], threshold),
        conditional=_conditional(column.take(column.reached), resamples),
        drop=None,
        drop_low=None,
        drop_high=None,
        rejection=None,
    )


def _conditional(reached: Column, resamples: IntArray) -> Conditional:
    """Of the readings whose path reached the depth above."""
    size = len(reached.confidence)
    low, high = auc_interval(reached, resamples)
    share = float(reached.accepted.mean()) if size else None
    return Conditional(size, share, auc(reached.confidence, reached.accepted), low, high)


def conditional_shares(column: Column, resamples: IntArray) -> FloatArray:
    """[R] conditional acceptance of each resample; NaN where nobody reached the depth above."""
    num_prompts = resamples.shape[1]
    reached = np.bincount(column.prompt, weights=column.reached, minlength=num_prompts)
    accepted = np.bincount(column.prompt, weights=column.accepted & column.reached, minlength=num_prompts)
    num_reached = resamples @ reached
    shares: FloatArray = np.full(len(resamples), np.nan)
    np.divide(resamples @ accepted, num_reached, out=shares, where=num_reached > 0)
    return shares


def with_drop(depth: DepthFit, above: float | None, drops: FloatArray) -> DepthFit:
    """`above`: conditional acceptance at the depth above. drops [R]: of the resamples; the undefined are left out."""
    here, defined = depth.conditional.acceptance, drops[~np.isnan(drops)]
    if above is None or here is None or not defined.size:
        return depth
    low, high = np.percentile(defined, INTERVAL)
    return depth._replace(drop=above - here, drop_low=float(low), drop_high=float(high))


def rejection(depth: DepthFit, num_prompts: int, cut: Cut) -> str | None:
    """Why the depth is no checkpoint; None where it is one."""
    if depth.n < MIN_READINGS:
        return f"{depth.n} readings, at least {MIN_READINGS} are needed"
    if num_prompts < MIN_PROMPTS:
        return f"readings from {num_prompts} prompts, at least {MIN_PROMPTS} are needed"
    if depth.auc is None or depth.auc_low is None or depth.auc_high is None:
        return "always accepted" if depth.acceptance == 1.0 else "never accepted"
    below = f"its lower end is below the cut {cut.value:.2f}"
    if cut.rule == "auc" and depth.auc_low < cut.value:
        return f"AUC {depth.auc:.2f} [{depth.auc_low:.2f}, {depth.auc_high:.2f}], {below}"
    if cut.rule == "drop" and (depth.drop_low is None or depth.drop_low < cut.value):
        known = (depth.drop, depth.drop_low, depth.drop_high)
        drop, low, high = ("-" if value is None else f"{value:.2f}" for value in known)
        return f"acceptance drops by {drop} [{low}, {high}], {below}"
    if depth.threshold is None or depth.held_out_j is None:
        return "one half of the prompts has only accepted or only rejected readings"
    if depth.held_out_j <= 0.0:
        return f"threshold {depth.threshold:.3f} separates nothing on held-out prompts (J {depth.held_out_j:.2f})"
    return None
