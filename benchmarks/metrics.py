"""What a load test measures, from the time stamps of its requests to the numbers of the report.

Definitions (the same as other serving benchmarks use):
    TTFT   first streamed output - send
    E2EL   finish - send
    ITL    gap between two streamed outputs of one request; tokens that arrive together add no zero gaps
    TPOT   (E2EL - TTFT) / (output tokens - 1), for requests of at least two tokens
Only completed requests enter a latency or a throughput; the others are counted apart.

Knows nothing of HTTP, servers or files.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from echo_sched.errors import ConfigError

LATENCIES = ("ttft", "tpot", "itl", "e2el")
GOODPUT_LATENCIES = ("ttft", "tpot", "e2el")
DEFAULT_PERCENTILES = (90.0, 95.0, 99.0)

Kind = Literal["completed", "failed", "rejected", "cancelled"]


@dataclass(frozen=True)
class Outcome:
    """What became of one request. Times in seconds on one monotonic clock; token counts as the server reported them."""

    kind: Kind
    start: float
    end: float
    output_times: tuple[float, ...] = ()  # when a streamed output arrived
    num_input_tokens: int = 0
    num_output_tokens: int = 0
    reason: str | None = None  # why it did not complete

    @property
    def ttft(self) -> float:
        return self.output_times[0] - self.start

    @property
    def e2el(self) -> float:
        return self.end - self.start

    @property
    def itl(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.output_times, self.output_times[1:], strict=False)]

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first; None for a single token, which has no pace."""
        if self.num_output_tokens < 2:
            return None
        return (self.e2el - self.ttft) / (self.num_output_tokens - 1)

    def meets(self, goals: dict[str, float]) -> bool:
        """Completed within every goal (latency name -> milliseconds). A single token meets any TPOT goal."""
        if self.kind != "completed":
            return False
        measured = {"ttft": self.ttft, "tpot": self.tpot or 0.0, "e2el": self.e2el}
        return all(measured[name] * 1000 <= limit for name, limit in goals.items())


def parse_goals(words: Sequence[str]) -> dict[str, float]:
    """`["ttft:500", "tpot:50"]` -> milliseconds by latency. Raises ConfigError naming the bad word."""
    goals: dict[str, float] = {}
    for word in words:
        name, _, limit = word.partition(":")
        try:
            milliseconds = float(limit)
        except ValueError:
            milliseconds = float("nan")
        if name not in GOODPUT_LATENCIES or not milliseconds > 0:
            raise ConfigError(f"--goodput takes NAME:MS with NAME one of {', '.join(GOODPUT_LATENCIES)}, got {word!r}")
        goals[name] = milliseconds
    return goals


def summarise(
    outcomes: Sequence[Outcome],
    duration: float,
    goals: dict[str, float],
    percentiles: Sequence[float] = DEFAULT_PERCENTILES,
    percentile_latencies: Collection[str] = LATENCIES,
) -> dict[str, Any]:
    """The numbers of one run of `duration` seconds; undefined ones are None, never NaN."""
    completed = [outcome for outcome in outcomes if outcome.kind == "completed"]
    kinds = Counter(outcome.kind for outcome in outcomes)
    num_output_tokens = sum(outcome.num_output_tokens for outcome in completed)
    summary: dict[str, Any] = {
        "duration": duration,
        **{kind: kinds[kind] for kind in ("completed", "failed", "rejected", "cancelled")},
        "total_input_tokens": sum(outcome.num_input_tokens for outcome in completed),
        "total_output_tokens": num_output_tokens,
        "request_throughput": len(completed) / duration,
        "request_goodput": sum(outcome.meets(goals) for outcome in completed) / duration if goals else None,
        "output_throughput": num_output_tokens / duration,
        "max_concurrent_requests": peak_in_flight(outcomes),
    }
    samples = {
        "ttft": [outcome.ttft for outcome in completed],
        "tpot": [outcome.tpot for outcome in completed if outcome.tpot is not None],
        "itl": [gap for outcome in completed for gap in outcome.itl],
        "e2el": [outcome.e2el for outcome in completed],
    }
    for name in LATENCIES:
        wanted = percentiles if name in percentile_latencies else ()
        summary |= {f"{key}_{name}_ms": value for key, value in _statistics(samples[name], wanted).items()}
    summary["failure_reasons"] = dict(Counter(outcome.reason for outcome in outcomes if outcome.reason))
    return summary


def peak_in_flight(outcomes: Sequence[Outcome]) -> int:
    """Most requests that were open at the same moment; one that ends as another starts does not overlap it."""
    changes = sorted([(o.start, 1) for o in outcomes] + [(o.end, -1) for o in outcomes])
    return int(np.max(np.cumsum([change for _, change in changes]), initial=0))


def _statistics(seconds: Sequence[float], percentiles: Sequence[float]) -> dict[str, float | None]:
    """mean, median, std and the wanted percentiles, in milliseconds."""
    keys = ["mean", "median", "std", *(f"p{percentile:g}" for percentile in percentiles)]
    if not seconds:
        return dict.fromkeys(keys)
    values = np.asarray(seconds, np.float64) * 1000
    numbers = [values.mean(), np.median(values), values.std(), *(np.percentile(values, p) for p in percentiles)]
    return {key: float(number) for key, number in zip(keys, numbers, strict=True)}
