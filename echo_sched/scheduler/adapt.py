"""Thresholds refitted while serving, from explored readings, by calibration's rule. Off unless asked for.

Bounded: a depth is looked at once per REFIT_READINGS new readings, which at one explored step in a hundred are
thousands of steps, and keeps its threshold unless the new one separates readings that it was not fitted to.
"""

from collections.abc import Mapping

from echo_sched.scheduler.drift import Column
from echo_sched.scheduler.fit import separation, youden_threshold

REFIT_READINGS = 512


class Adaptation:
    """Says when and to what a threshold changes; whoever asks applies it."""

    def __init__(self) -> None:
        self._looked_at: dict[int, int] = {}  # depth -> readings ever seen at the last look

    def refits(self, columns: Mapping[int, Column]) -> dict[int, float]:
        """Depth -> new threshold, for the depths whose turn has come and that have a better one to show."""
        found = {}
        for depth, column in columns.items():
            if column.num_seen - self._looked_at.get(depth, 0) >= REFIT_READINGS:
                self._looked_at[depth] = column.num_seen
                threshold = refit(column)
                if threshold is not None:
                    found[depth] = threshold
        return found


def refit(column: Column) -> float | None:
    """Youden's threshold of the older half of the window; None unless it separates the newer half."""
    half = len(column.confidence) // 2
    threshold = youden_threshold(column.confidence[:half], column.accepted[:half])
    if threshold is None:
        return None
    held_out = separation(column.confidence[half:], column.accepted[half:], threshold)
    return threshold if held_out is not None and held_out > 0 else None
