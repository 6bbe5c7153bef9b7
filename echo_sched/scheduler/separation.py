"""How well confidence separates accepted from rejected readings: AUC with its interval, the best cut, and its worth.

Knows the readings of one depth as columns; not what a gate or a checkpoint is.
"""

from typing import NamedTuple

import numpy as np

from echo_sched.tree import BoolArray, FloatArray, IntArray

INTERVAL = (2.5, 97.5)  # percentiles of the bootstrap: a 95 % interval


class Column(NamedTuple):
    """The readings of one depth. All arrays [n]."""

    confidence: FloatArray
    accepted: BoolArray
    prompt: IntArray  # index into the sorted request ids
    reached: BoolArray  # the accepted path reached the depth above

    def take(self, rows: BoolArray) -> "Column":
        return Column(self.confidence[rows], self.accepted[rows], self.prompt[rows], self.reached[rows])


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


def _grouped_auc(group: IntArray, num_groups: int, accepted: BoolArray, weight: FloatArray | IntArray) -> float | None:
    """AUC where `group` [n] ranks the readings' distinct confidences."""
    positives = np.bincount(group, weights=weight * accepted, minlength=num_groups)
    negatives = np.bincount(group, weights=weight * ~accepted, minlength=num_groups)
    num_pairs = positives.sum() * negatives.sum()
    if num_pairs == 0:
        return None
    below = negatives.cumsum() - negatives
    return float((positives * (below + negatives / 2)).sum() / num_pairs)
