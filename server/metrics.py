"""Prometheus metrics of one app, filled from step reports and request outcomes. A metric can never fail a request.

Each app has its own registry. A series exists only if today's step records can fill it truthfully. Knows nothing of
routes or of the engine's inside.
"""

import logging
import time
from collections.abc import Callable
from typing import Concatenate, ParamSpec

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

from echo_sched.types import StepRecord
from server.gate_metrics import GateMetrics
from server.generation import Output
from server.reports import Progress, Report, ServedModel
from server.version import package_version

logger = logging.getLogger("echo_sched.server")

FIRST_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
GAP_BUCKETS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
LATENCY_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
PHASE_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
NODE_BUCKETS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
COST_MEMORY = 0.05  # weight of the latest step
DEPTH_BUCKETS = tuple(float(depth) for depth in (*range(9), 12, 16, 24, 32))

Arguments = ParamSpec("Arguments")


Recording = Callable[Concatenate["Metrics", Arguments], None]


def _harmless(record: Recording[Arguments]) -> Recording[Arguments]:
    def guarded(self: "Metrics", /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        try:
            record(self, *args, **kwargs)
        except Exception:  # a metric can never fail a request
            logger.warning("a metric could not be recorded", exc_info=True)

    return guarded


class Metrics:
    """The `echo_sched_*` series."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._cost_ratio: float | None = None  # None: no step had an expectation
        self._build = Info("echo_sched_build", "what is running", registry=self._registry)
        self._requests_and_tokens()
        self._speculation()
        self._budget()
        self._gate = GateMetrics(self._registry)

    def render(self) -> bytes:
        """The text format of Prometheus."""
        return generate_latest(self._registry)

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(f"echo_sched_{name}", what, labels, registry=self._registry)

    def _gauge(self, name: str, what: str) -> Gauge:
        return Gauge(f"echo_sched_{name}", what, registry=self._registry)

    def _histogram(self, name: str, what: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"echo_sched_{name}", what, labels, registry=self._registry, buckets=buckets)

    def _requests_and_tokens(self) -> None:
        self._running = self._gauge("num_requests_running", "requests that hold a KV slot")
        self._waiting = self._gauge("num_requests_waiting", "requests that wait for a KV slot")
        self._slots = self._gauge("kv_slots_used", "KV slots in use")
        self._prompt_tokens = self._counter("prompt_tokens", "prompt tokens computed")
        self._generation_tokens = self._counter("generation_tokens", "tokens emitted")
        self._first_token = self._histogram(
            "time_to_first_token_seconds", "arrival to first output", FIRST_TOKEN_BUCKETS
        )
        self._gap = self._histogram(
            "inter_token_latency_seconds", "gap between outputs, which may hold several tokens", GAP_BUCKETS
        )
        self._latency = self._histogram("e2e_request_latency_seconds", "arrival to end", LATENCY_BUCKETS)
        self._queue = self._histogram("queue_time_seconds", "arrival to KV slot", FIRST_TOKEN_BUCKETS)
        self._success = self._counter("request_success", "requests that ended", "finished_reason")

    def _speculation(self) -> None:
        self._verify_steps = self._counter("verify_steps", "verify steps, counted per request, with a draft or without")
        self._verify_emitted = self._counter("verify_emitted_tokens", "tokens of verify steps, bonus included")
        self._drafts = self._counter("spec_decode_num_drafts", "draft trees verified")
        self._draft_tokens = self._counter("spec_decode_num_draft_tokens", "draft nodes verified")
        self._accepted_tokens = self._counter("spec_decode_num_accepted_tokens", "draft nodes accepted")
        self._accepted_per_pos = self._counter(
            "spec_decode_num_accepted_tokens_per_pos", "draft nodes accepted, by depth - 1", "position"
        )
        self._depth = self._histogram(
            "depth_histogram", "accepted depth per verify step and request, 0 without any", DEPTH_BUCKETS
        )

    def _budget(self) -> None:
        self._budget_nodes = self._histogram(
            "verify_budget_tokens", "draft nodes that a decoding step might verify (K_max)", NODE_BUCKETS
        )
        self._used_nodes = self._histogram("verify_used_tokens", "draft nodes that it verified", NODE_BUCKETS)
        self._drafted = self._counter("drafted_nodes", "candidates that the drafter proposed")
        self._pruned = self._counter("pruned_nodes", "candidates that were not verified", "stage")
        self._expected = self._counter(
            "expected_accepted_nodes", "draft nodes accepted, as calibration expects it, of steps with a price"
        )
        self._cost_error = self._gauge(
            "cost_model_error_ratio", "measured over expected seconds of verifying, moving average over steps"
        )
        self._truncated = self._counter("truncated", "requests truncated before a depth", "depth")
        self._deepened = self._counter("deepened", "nodes granted beyond the target depth", "depth")
        self._explored = self._counter("explored_steps", "decoding steps without a gate, to see whether it is right")
        self._widened = self._counter("widened_nodes", "siblings granted from what was left of the budget")
        self._plain_steps = self._counter("steps_without_draft", "decoding steps without a draft node")
        self._step_seconds = self._histogram("step_seconds", "time per phase of a step", PHASE_BUCKETS, "phase")
        self._last_step = self._gauge("last_step_timestamp_seconds", "Unix time of the last step's end")

    @property
    def cost_model_error(self) -> float | None:
        """Measured over expected seconds of verifying, moving average; None where nothing was expected yet."""
        return self._cost_ratio

    @_harmless
    def describe(self, model: ServedModel) -> None:
        """The model is loaded."""
        facts = {"version": package_version(), "model": model.config.model, "policy": model.config.policy}
        self._build.info({**facts, "drafter": model.config.drafter, "numerics": model.config.numerics})

    @_harmless
    def engine(self, report: Report) -> None:
        """A step or a command is done."""
        self._running.set(report.num_running)
        self._waiting.set(report.num_waiting)
        self._slots.set(report.num_running)  # one slot per running request
        for seconds in report.queue_seconds:
            self._queue.observe(seconds)
        if report.record is not None:
            self._step(report.record)
        if report.scheduling is not None:
            self._gate.observe(report.scheduling.state)

    @_harmless
    def progress(self, output: Output, progress: Progress, at: float) -> None:
        """`output` is about to advance by `progress`."""
        if progress.token_ids:
            if output.token_ids:
                self._gap.observe(at - output.updated_at)
            else:
                self._first_token.observe(at - output.arrived_at)
        self._verify_steps.inc(progress.stats.num_verify_steps - output.stats.num_verify_steps)
        self._verify_emitted.inc(progress.stats.num_emitted - output.stats.num_emitted)
        self._drafts.inc(int(progress.stats.num_verified > output.stats.num_verified))
        for length, steps in (progress.stats.accepted_lengths - output.stats.accepted_lengths).items():
            for _ in range(steps):
                self._depth.observe(length)
            for position in range(length):
                self._accepted_per_pos.labels(position).inc(steps)

    @_harmless
    def finished(self, reason: str, seconds: float) -> None:
        """A request has ended `seconds` after its arrival."""
        self._success.labels(reason).inc()
        self._latency.observe(seconds)

    def _step(self, record: StepRecord) -> None:
        self._last_step.set(time.time())
        self._prompt_tokens.inc(record.num_prompt_tokens)
        self._generation_tokens.inc(record.num_emitted)
        self._draft_tokens.inc(record.num_verified)
        self._accepted_tokens.inc(record.num_accepted)
        self._drafted.inc(record.num_offered)
        self._pruned.labels("verify").inc(record.num_dropped)
        not_verified = record.num_offered - record.num_verified - record.num_dropped
        self._pruned.labels("draft").inc(not_verified - record.num_forbidden)
        self._pruned.labels("grammar").inc(record.num_forbidden)
        if record.expected_accepted is not None:
            self._expected.inc(record.expected_accepted)
        if record.expected_seconds is not None:
            ratio = record.seconds["verify"] / record.expected_seconds
            known = 1.0 if self._cost_ratio is None else self._cost_ratio
            self._cost_ratio = known + COST_MEMORY * (ratio - known)
            self._cost_error.set(self._cost_ratio)
        self._widened.inc(record.num_widened)
        self._explored.inc(int(record.explored))
        for depth, count in record.truncated.items():
            self._truncated.labels(depth).inc(count)
        for depth, count in record.deepened.items():
            self._deepened.labels(depth).inc(count)
        for phase, seconds in record.seconds.items():
            self._step_seconds.labels(phase).observe(seconds)
        if record.num_decoding:
            self._budget_nodes.observe(record.k_max)
            self._used_nodes.observe(record.num_verified)
            self._plain_steps.inc(int(record.num_verified == 0))
