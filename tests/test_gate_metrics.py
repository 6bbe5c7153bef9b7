"""Series of the gate: what is no longer in force is no longer shown."""

from prometheus_client import CollectorRegistry

from echo_sched.scheduler.live import LiveState
from server.gate_metrics import GateMetrics


def state(thresholds: dict[int, float], shift: dict[int, float] | None = None) -> LiveState:
    return LiveState("echo", thresholds, {}, 0, 0, 0, 0, 0, (), shift or {})


def test_the_threshold_of_a_depth_that_is_left_unread_goes() -> None:
    registry = CollectorRegistry()
    metrics = GateMetrics(registry)

    def shown(depth: int) -> float | None:
        return registry.get_sample_value("echo_sched_gate_threshold", {"depth": str(depth)})

    metrics.observe(state({1: 0.4, 3: 0.2}))
    assert (shown(1), shown(3)) == (0.4, 0.2)
    metrics.observe(state({1: 0.5}))
    assert (shown(1), shown(3)) == (0.5, None)
    metrics.observe(state({}))
    assert (shown(1), shown(3)) == (None, None)
    metrics.observe(state({3: 0.1}))
    assert (shown(1), shown(3)) == (None, 0.1)


def test_the_shift_of_chances_is_shown_while_there_is_one() -> None:
    registry = CollectorRegistry()
    metrics = GateMetrics(registry)

    def shown(depth: int) -> float | None:
        return registry.get_sample_value("echo_sched_acceptance_shift", {"depth": str(depth)})

    metrics.observe(state({}, {1: -0.5, 2: 0.25}))
    assert (shown(1), shown(2)) == (-0.5, 0.25)
    metrics.observe(state({}))
    assert (shown(1), shown(2)) == (None, None)
