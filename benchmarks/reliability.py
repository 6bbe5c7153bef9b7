"""Does a path probability mean what it says? Nodes sorted by it into bins, and how many of each bin were accepted.

A node's path probability is exp(S), S its path logprob. Of nodes with probability 0.7 a well calibrated drafter sees
70 % accepted. Knows nothing of arms, steps or files.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from echo_sched.tree import FloatArray
from echo_sched.types import NodeReading

NUM_BINS = 10  # of equal width; bin b is [b / 10, (b + 1) / 10), the last one with 1.0 in it
ALL_DEPTHS = "all"


class Reliability:
    """Sums per depth and bin: the memory does not grow with the number of readings."""

    def __init__(self) -> None:
        self._sums = np.zeros((3, 0, NUM_BINS))  # [count, sum of probabilities, accepted] x depth - 1 x bin

    def add(self, readings: Sequence[NodeReading]) -> None:
        if not readings:
            return
        level = np.array([reading.depth for reading in readings]) - 1
        probability = np.exp([reading.path_logp for reading in readings])
        accepted = np.array([reading.accepted for reading in readings])
        missing = max(int(level.max()) + 1 - self._sums.shape[1], 0)
        self._sums = np.pad(self._sums, ((0, 0), (0, missing), (0, 0)))
        place = level * NUM_BINS + np.minimum((probability * NUM_BINS).astype(np.int64), NUM_BINS - 1)
        for sums, weights in zip(self._sums, (np.ones(len(place)), probability, accepted), strict=True):
            sums += np.bincount(place, weights, minlength=sums.size).reshape(sums.shape)

    def summary(self) -> dict[str, Any]:
        """A table for all depths together and one for each depth."""
        tables = {ALL_DEPTHS: self._sums.sum(axis=1)}
        tables |= {str(index + 1): self._sums[:, index] for index in range(self._sums.shape[1])}
        return {depth: _table(sums) for depth, sums in tables.items()}


def _table(sums: FloatArray) -> dict[str, Any]:
    """Columns over the bins; None where a bin is empty.

    The expected calibration error is |share accepted - mean probability| of each bin, weighted by its count.
    """
    counts, probabilities, accepted = sums
    num_nodes = int(counts.sum())
    return {
        "num_nodes": num_nodes,
        "expected_calibration_error": float(np.abs(accepted - probabilities).sum() / num_nodes) if num_nodes else None,
        "count": counts.astype(int).tolist(),
        "mean_probability": _shares(probabilities, counts),
        "share_accepted": _shares(accepted, counts),
    }


def _shares(sums: FloatArray, counts: FloatArray) -> list[float | None]:
    return [total / count if count else None for total, count in zip(sums.tolist(), counts.tolist(), strict=True)]
