"""What gate readings say: how well confidence predicts acceptance at each depth, and the checkpoints that follow.

The question of a gate at depth d is "will the accepted path reach d?". Its evidence is the readings of ungated trees:
one confidence and one answer per step, request and depth. Readings of one prompt resemble each other, so prompts, never
steps, are what is split and what is resampled:

    AUC, interval     all prompts; the confidence is used as it comes, so nothing here is fitted to them
    threshold         Youden's J on the fitting half of the prompts
    held-out J        the same threshold on the other half; it must still separate there

Knows nothing of models, engines or files.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from echo_sched.tree import BoolArray, FloatArray, IntArray
from echo_sched.types import GateReading

DEFAULT_AUC_CUT = 0.6  # the lower end of the interval must reach it; 0.5 is a coin
MIN_READINGS = 50  # fewer readings at a depth decide nothing
MIN_PROMPTS = 8  # a bootstrap over fewer clusters understates its own spread
NUM_RESAMPLES = 1000
INTERVAL = (2.5, 97.5)  # percentiles of the bootstrap: a 95 % interval
TARGET_REACH = 0.3  # the base tree goes as deep as at least this share of all trees is accepted


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
    rejection: str | None  # why it is no checkpoint


class Fit(NamedTuple):
    """Everything a profile needs from the readings."""

    depths: tuple[DepthFit, ...]  # ascending, every depth with readings
    target_depth: int
    typical_depth: float
    checkpoints: tuple[DepthFit, ...]
    no_checkpoint_reason: str | None


class Column(NamedTuple):
    """The readings of one depth. All arrays [n]."""

    confidence: FloatArray
    accepted: BoolArray
    prompt: IntArray  # index into the sorted request ids


def fit(
    readings: Sequence[GateReading],
    *,
    max_depth: int,
    auc_cut: float = DEFAULT_AUC_CUT,
    seed: int = 0,
    num_resamples: int = NUM_RESAMPLES,
) -> Fit:
    """Fit one profile's numbers to the readings of ungated trees that may reach `max_depth`.

    `request_id` names the prompt: one request per prompt. The result depends on `seed` and on the set of readings, not
    on their order.
    """
    assert readings, "the caller checks that something was read"
    names = sorted({reading.request_id for reading in readings})
    random = np.random.default_rng(seed)
    fitting = np.zeros(len(names), np.bool_)
    fitting[random.permutation(len(names))[: (len(names) + 1) // 2]] = True
    resamples = random.multinomial(len(names), np.full(len(names), 1 / len(names)), size=num_resamples)
    columns = _by_depth(readings, {name: index for index, name in enumerate(names)})
    depths = tuple(_fit_depth(depth, columns[depth], fitting, resamples, auc_cut) for depth in sorted(columns))
    target = target_depth(depths, max_depth)
    checkpoints = tuple(depth for depth in depths if depth.rejection is None)
    return Fit(depths, target, typical_depth(depths), checkpoints, _no_checkpoint_reason(depths, target))


def target_depth(depths: Sequence[DepthFit], max_depth: int) -> int:
    """d0: the deepest depth that at least TARGET_REACH of the steps with offers reached; at least 1, below `max_depth`.

    Unconditional: a tree whose drafter had nothing to offer at d did not reach d.
    """
    num_steps = _num_steps(depths)
    reached = [fit.depth for fit in depths if fit.acceptance * fit.n >= TARGET_REACH * num_steps]
    return min(max(reached, default=1), max(1, max_depth - 1))


def typical_depth(depths: Sequence[DepthFit]) -> float:
    """D_typ: mean number of accepted nodes over the steps with offers, at least 1.

    An accepted path passes every depth on its way, so the sum over depths of "reached d" is its length.
    """
    return max(1.0, sum(fit.acceptance * fit.n for fit in depths) / _num_steps(depths))


def auc(confidence: FloatArray, accepted: BoolArray, weight: FloatArray | None = None) -> float | None:
    """Chance that an accepted reading is more confident than a rejected one, ties counting half (Mann-Whitney).

    Arrays [n]; `weight` counts each reading that often. None without both classes.
    """
    values, group = np.unique(confidence, return_inverse=True)
    return _grouped_auc(group, len(values), accepted, np.ones(len(group)) if weight is None else weight)


def auc_interval(column: Column, resamples: IntArray) -> tuple[float | None, float | None]:
    """95 % percentile bootstrap over prompts. `resamples` [R, prompts]: how often each prompt is drawn.

    Resamples without both classes say nothing and are left out.
    """
    values, group = np.unique(column.confidence, return_inverse=True)
    draws = [_grouped_auc(group, len(values), column.accepted, counts[column.prompt]) for counts in resamples]
    defined = [draw for draw in draws if draw is not None]
    if not defined:
        return None, None
    low, high = np.percentile(defined, INTERVAL)
    return float(low), float(high)


def youden_threshold(confidence: FloatArray, accepted: BoolArray) -> float | None:
    """The cut-off with the largest J = sensitivity + specificity - 1 (Youden 1950), the lowest of equals.

    Candidates lie midway between neighbouring confidences, so that the cut does not touch a seen value. J weighs a
    wasted draft and a lost acceptance equally, each as a share of its class; it knows no cost. None without both
    classes or with one single confidence.
    """
    values, group = np.unique(confidence, return_inverse=True)
    if len(values) < 2 or accepted.all() or not accepted.any():
        return None
    positives = np.bincount(group, weights=accepted, minlength=len(values))
    negatives = np.bincount(group, weights=~accepted, minlength=len(values))
    below = slice(0, len(values) - 1)  # cut k closes the gate for values[: k + 1]
    j = negatives.cumsum()[below] / negatives.sum() - positives.cumsum()[below] / positives.sum()
    best = int(np.argmax(j))
    middle = (values[best] + values[best + 1]) / 2
    return float(middle if middle < values[best + 1] else values[best])  # neighbours one bit apart have no middle


def separation(confidence: FloatArray, accepted: BoolArray, threshold: float) -> float | None:
    """J of the gate `c > threshold`; None without both classes."""
    if accepted.all() or not accepted.any():
        return None
    passes = confidence > threshold
    return float(passes[accepted].mean() - passes[~accepted].mean())


def _fit_depth(depth: int, column: Column, fitting: BoolArray, resamples: IntArray, auc_cut: float) -> DepthFit:
    confidence, accepted, _ = column
    fits = fitting[column.prompt]
    low, high = auc_interval(column, resamples)
    threshold = youden_threshold(confidence[fits], accepted[fits])
    result = DepthFit(
        depth=depth,
        n=len(confidence),
        acceptance=float(accepted.mean()),
        mean_confidence=float(confidence.mean()),
        auc=auc(confidence, accepted),
        auc_low=low,
        auc_high=high,
        threshold=threshold,
        held_out_j=None if threshold is None else separation(confidence[~fits], accepted[~fits], threshold),
        rejection=None,
    )
    return result._replace(rejection=_rejection(result, len(np.unique(column.prompt)), auc_cut))


def _rejection(depth: DepthFit, num_prompts: int, auc_cut: float) -> str | None:
    if depth.n < MIN_READINGS:
        return f"{depth.n} readings, at least {MIN_READINGS} are needed"
    if num_prompts < MIN_PROMPTS:
        return f"readings from {num_prompts} prompts, at least {MIN_PROMPTS} are needed"
    if depth.auc is None or depth.auc_low is None or depth.auc_high is None:
        return "always accepted" if depth.acceptance == 1.0 else "never accepted"
    if depth.auc_low < auc_cut:
        interval = f"[{depth.auc_low:.2f}, {depth.auc_high:.2f}]"
        return f"AUC {depth.auc:.2f} {interval}, its lower end is below the cut {auc_cut:.2f}"
    if depth.threshold is None or depth.held_out_j is None:
        return "one half of the prompts has only accepted or only rejected readings"
    if depth.held_out_j <= 0.0:
        return f"threshold {depth.threshold:.3f} separates nothing on held-out prompts (J {depth.held_out_j:.2f})"
    return None


def _no_checkpoint_reason(depths: Sequence[DepthFit], target: int) -> str | None:
    """None when a middle depth (neither the root gate's nor the target depth) is a checkpoint."""
    middle = [fit for fit in depths if fit.depth not in (1, target)]
    if any(fit.rejection is None for fit in middle):
        return None
    if not middle:
        return f"no middle depth was measured (the root gate is depth 1, the target depth {target})"
    return "no middle depth qualifies: " + "; ".join(f"depth {fit.depth}: {fit.rejection}" for fit in middle)


def _num_steps(depths: Sequence[DepthFit]) -> int:
    """Steps, over all requests, that had offers at all: every tree begins at depth 1."""
    return max(fit.n for fit in depths)


def _by_depth(readings: Sequence[GateReading], prompt_index: dict[str, int]) -> dict[int, Column]:
    groups: dict[int, list[GateReading]] = {}
    for reading in sorted(readings, key=lambda reading: (reading.request_id, reading.step, reading.depth)):
        groups.setdefault(reading.depth, []).append(reading)
    return {
        depth: Column(
            confidence=np.array([reading.confidence for reading in group], np.float64),
            accepted=np.array([reading.accepted for reading in group], np.bool_),
            prompt=np.array([prompt_index[reading.request_id] for reading in group], np.int64),
        )
        for depth, group in groups.items()
    }


def _grouped_auc(group: IntArray, num_groups: int, accepted: BoolArray, weight: FloatArray | IntArray) -> float | None:
    """AUC where `group` [n] ranks the readings' distinct confidences."""
    positives = np.bincount(group, weights=weight * accepted, minlength=num_groups)
    negatives = np.bincount(group, weights=weight * ~accepted, minlength=num_groups)
    num_pairs = positives.sum() * negatives.sum()
    if num_pairs == 0:
        return None
    below = negatives.cumsum() - negatives
    return float((positives * (below + negatives / 2)).sum() / num_pairs)
