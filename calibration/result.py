"""What one calibration found. Plain data, no torch."""

from typing import NamedTuple

from calibration.categories import CategoryStats
from calibration.throughput import BucketFit
from calibration.trace import OfferTrace
from echo_sched.scheduler.fit import Fit
from echo_sched.scheduler.profile import Profile
from echo_sched.types import GateReading, NodeReading


class Calibration(NamedTuple):
    """The result: what is stored, and what a person is shown."""

    profile: Profile
    fit: Fit
    readings: tuple[GateReading, ...]
    nodes: tuple[NodeReading, ...]
    categories: tuple[CategoryStats, ...]
    buckets: tuple[BucketFit, ...]  # none where thresholds are the same for every load
    chosen_k_max: dict[int, int]  # by batch size; empty without costs
    trace: OfferTrace | None  # where one was asked for
