"""Whether the gate is still right: live AUC and calibration error per checkpoint, beside what calibration found.

Fed with explored steps only (explore.py), whose trees no gate, price or neighbour has cut, so that nothing selects
what is seen. Remembers the last WINDOW readings of each depth; a step that is not explored costs nothing here. Decides
nothing: adapt.py makes thresholds of the same readings.
"""

import logging
import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from echo_sched.scheduler.acceptance import Acceptance
from echo_sched.scheduler.fit import auc
from echo_sched.scheduler.plan import AllocationReport
from echo_sched.scheduler.profile import Checkpoint, DepthStats, Profile
from echo_sched.scheduler.seen import NOT_GRANTED
from echo_sched.tree import BoolArray, FloatArray, IntArray

logger = logging.getLogger(__name__)

WINDOW = 512  # readings per depth
MIN_READINGS = 128  # fewer decide nothing
NUM_BINS = 10  # of equal width, for the calibration error
# Standard errors around the live AUC that must lie outside the profile's interval: the question is asked at every
# explored step, so two would cry wolf within a day.
NUM_ERRORS = 3.0


class DepthDrift(NamedTuple):
    """One checkpoint depth, live and as calibrated. None where undefined or never measured."""

    depth: int
    num_readings: int  # in the window
    acceptance: float  # share whose accepted path reached the depth
    auc: float | None
    auc_low: float | None  # live AUC less and plus NUM_ERRORS standard errors
    auc_high: float | None
    calibration_error: float  # expected calibration error: mean |accepted share - calibrated chance| over bins
    profile_auc: float | None
    profile_auc_low: float | None
    profile_auc_high: float | None
    drifted: bool  # the live AUC has left the profile's interval, and not come back


class Column:
    """The last WINDOW readings of one depth, oldest first. Arrays [n]."""

    def __init__(self) -> None:
        self.confidence: FloatArray = np.zeros(0)
        self.chance: FloatArray = np.zeros(0)  # that the path reaches the depth, by the profile's acceptance curves
        self.accepted: BoolArray = np.zeros(0, np.bool_)
        self.num_seen = 0  # readings ever

    def add(self, confidence: FloatArray, chance: FloatArray, accepted: BoolArray) -> None:
        self.confidence = np.concatenate([self.confidence, confidence])[-WINDOW:]
        self.chance = np.concatenate([self.chance, chance])[-WINDOW:]
        self.accepted = np.concatenate([self.accepted, accepted])[-WINDOW:]
        self.num_seen += len(confidence)


class Drift:
    """Live readings of one profile's checkpoints."""

    def __init__(self, profile: Profile) -> None:
        self._acceptance = Acceptance(profile.acceptance)
        rows: list[DepthStats | Checkpoint] = [*profile.depths, *profile.checkpoints]
        self._calibrated = {row.depth: row for row in rows}
        self._drifted: set[int] = set()
        self.columns: dict[int, Column] = {}
        self.depths: tuple[DepthDrift, ...] = ()  # as of the last readings, ascending

    def observe(self, read: Collection[int], report: AllocationReport, accepted: Sequence[int]) -> None:
        """Take in an explored step. read: the depths that the gate reads; accepted [B]: accepted nodes per request.

        Label y[i, d] = 1 iff the accepted path of request i reaches depth d, as in calibration.
        """
        readings, reached = report.readings, np.asarray(accepted, np.int64)
        for depth in read:
            rows = readings.depth == depth
            if rows.any():
                request = readings.request[rows]
                chance = self._chance(report, depth, len(reached))[request]
                column = self.columns.setdefault(depth, Column())
                column.add(readings.confidence[rows], chance, reached[request] >= depth)
        self.depths = tuple(self._judged(depth) for depth in sorted(self.columns))

    def _chance(self, report: AllocationReport, depth: int, num_requests: int) -> FloatArray:
        """[B] calibrated chance that the path reaches `depth`: siblings exclude each other, so chances add up."""
        rows = (report.seen.depth == depth) & (report.seen.node != NOT_GRANTED)
        offers = report.seen.offers.take(rows)
        chances = self._acceptance.chance(depth, offers.path_logp)
        summed = np.bincount(offers.request, weights=chances, minlength=num_requests)
        return np.minimum(summed, 1.0).astype(np.float64)

    def _judged(self, depth: int) -> DepthDrift:
        column, calibrated = self.columns[depth], self._calibrated.get(depth)
        accepted = column.accepted
        live = auc(column.confidence, accepted)
        spread = None if live is None else NUM_ERRORS * auc_error(live, int(accepted.sum()), int((~accepted).sum()))
        found = DepthDrift(
            depth=depth,
            num_readings=len(accepted),
            acceptance=float(accepted.mean()),
            auc=live,
            auc_low=None if live is None or spread is None else max(0.0, live - spread),
            auc_high=None if live is None or spread is None else min(1.0, live + spread),
            calibration_error=calibration_error(column.chance, accepted),
            profile_auc=None if calibrated is None else calibrated.auc,
            profile_auc_low=None if calibrated is None else calibrated.auc_low,
            profile_auc_high=None if calibrated is None else calibrated.auc_high,
            drifted=depth in self._drifted,
        )
        return found._replace(drifted=self._note(found))

    def _note(self, found: DepthDrift) -> bool:
        """Whether the depth counts as drifted from now on; the log hears of changes only."""
        low, high, live = found.profile_auc_low, found.profile_auc_high, found.auc
        if low is None or high is None or live is None or found.num_readings < MIN_READINGS:
            return found.drifted
        assert found.auc_low is not None and found.auc_high is not None
        if not found.drifted and (found.auc_high < low or found.auc_low > high):
            self._drifted.add(found.depth)
            logger.warning(
                "depth %d: live AUC %.2f [%.2f, %.2f] over %d readings has left the profile's interval [%.2f, %.2f]: "
                "the gate was calibrated on other text than this; calibrate anew, or see --adapt",
                *(found.depth, live, found.auc_low, found.auc_high, found.num_readings, low, high),
            )
        elif found.drifted and low <= live <= high:
            self._drifted.discard(found.depth)
            logger.info("depth %d: live AUC %.2f is back in the profile's [%.2f, %.2f]", found.depth, live, low, high)
        return found.depth in self._drifted


def auc_error(value: float, num_positive: int, num_negative: int) -> float:
    """Standard error of an AUC (Hanley and McNeil 1982). Explored steps are rare, so readings count as independent."""
    both_positive = value / (2 - value) - value**2
    both_negative = 2 * value**2 / (1 + value) - value**2
    variance = value * (1 - value) + (num_positive - 1) * both_positive + (num_negative - 1) * both_negative
    return math.sqrt(max(0.0, variance) / (num_positive * num_negative))


def calibration_error(chance: FloatArray, accepted: BoolArray) -> float:
    """Expected calibration error: |accepted share - mean chance| over NUM_BINS bins of chance, by readings. [n], n > 0.

    Noise alone makes it about sqrt(NUM_BINS p (1 - p) / n): some hundredths at a few hundred readings.
    """
    bins: IntArray = np.minimum((chance * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    gaps = np.bincount(bins, weights=accepted - chance, minlength=NUM_BINS)
    return float(np.abs(gaps).sum() / len(chance))
