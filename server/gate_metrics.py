"""Series about the gate and the scheduler, most of them from explored steps, whose trees no gate has cut."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from echo_sched.scheduler.drift import DepthDrift
from echo_sched.scheduler.live import LiveState


class GateMetrics:
    """Part of the series of metrics.py."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def by_depth(name: str, what: str) -> Gauge:
            return Gauge(f"echo_sched_{name}", what, ["depth"], registry=registry)

        self._auc = by_depth("gate_auc", "live AUC of confidence against acceptance, over recent readings")
        self._calibration = by_depth(
            "gate_calibration_error", "mean gap between calibrated chance and accepted share, likewise"
        )
        self._readings = by_depth("gate_readings", "readings that these are made of")
        self._drifted = by_depth("gate_drifted", "1: the live AUC has left the profile's interval")
        self._threshold = by_depth("gate_threshold", "cut-off in force at the last step with a gate")
        self._shift = by_depth(
            "acceptance_shift", "log odds by which live chances of acceptance differ from the profile's curves"
        )
        self._k_max_changes = Counter(
            "echo_sched_k_max_changes", "changes of K_max from one decoding step to the next", registry=registry
        )
        self._num_k_max_changes = 0  # as last heard of
        self._read: set[int] = set()  # depths with a cut-off, likewise
        self._shifted: set[int] = set()  # depths with a shift, likewise
        self._drift: tuple[DepthDrift, ...] = ()

    def observe(self, state: LiveState) -> None:
        self._k_max_changes.inc(state.num_k_max_changes - self._num_k_max_changes)
        self._num_k_max_changes = state.num_k_max_changes
        self._read = _show(self._threshold, state.thresholds, self._read)
        self._shifted = _show(self._shift, state.acceptance_shift, self._shifted)
        if state.drift is self._drift:  # news come with explored steps only
            return
        self._drift = state.drift
        for found in state.drift:
            self._readings.labels(found.depth).set(found.num_readings)
            self._drifted.labels(found.depth).set(found.drifted)
            self._calibration.labels(found.depth).set(found.calibration_error)
            if found.auc is not None:
                self._auc.labels(found.depth).set(found.auc)


def _show(gauge: Gauge, values: Mapping[int, float], shown: set[int]) -> set[int]:
    """Set the gauge by depth; what was shown and has no value any more, since a change took it away, goes."""
    for depth in shown - values.keys():
        gauge.remove(depth)
    for depth, value in values.items():
        gauge.labels(depth).set(value)
    return set(values)
