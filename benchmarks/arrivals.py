"""When the requests of an open-loop load test are sent: at random with a given rate, or as a recorded trace has it.

Knows nothing of requests or HTTP.
"""

import csv
import math
from datetime import datetime
from pathlib import Path

import numpy as np

from echo_sched.errors import ConfigError, DataError
from echo_sched.tree import FloatArray

TIMESTAMP_COLUMN = "TIMESTAMP"  # layout of the Azure LLM inference traces: TIMESTAMP,ContextTokens,GeneratedTokens


def random_arrivals(num_requests: int, rate: float, burstiness: float, seed: int) -> FloatArray:
    """[n] seconds after the start. Gaps are gamma distributed with shape `burstiness` and mean 1 / `rate`.

    Burstiness 1 is a Poisson process, below 1 is burstier, above 1 more regular. An infinite rate sends all at once.
    """
    if math.isinf(rate):
        return np.zeros(num_requests)
    gaps = np.random.default_rng(seed).gamma(burstiness, 1.0 / (rate * burstiness), num_requests)
    gaps[:1] = 0.0  # the clock starts with the first request
    return np.cumsum(gaps)


def trace_arrivals(path: str | Path, num_requests: int, rate: float = math.inf) -> FloatArray:
    """[n] seconds after the first of the trace's rows, which must be in order of time.

    A finite `rate` stretches or squeezes the trace to that mean number of requests per second; its shape stays.
    Raises DataError when the file cannot be read, has no TIMESTAMP column, or holds too few rows.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            if TIMESTAMP_COLUMN not in (reader.fieldnames or ()):
                raise DataError(f"{path}: no column {TIMESTAMP_COLUMN}")
            # Stop early: a trace may hold many more rows than the test sends.
            times = [
                _timestamp(row[TIMESTAMP_COLUMN], path) for row, _ in zip(reader, range(num_requests), strict=False)
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot read the trace: {error}") from error
    if len(times) < num_requests:
        raise DataError(f"{path}: holds {len(times)} arrivals, but {num_requests} requests are to be sent")
    arrivals = np.array([(time - times[0]).total_seconds() for time in times])
    if np.any(np.diff(arrivals) < 0):
        raise DataError(f"{path}: timestamps are not in order")
    if math.isinf(rate):
        return arrivals
    if num_requests < 2 or arrivals[-1] == 0:
        raise ConfigError(f"{path}: --request-rate cannot rescale a trace whose requests all arrive at once")
    return np.asarray(arrivals * (num_requests - 1) / (arrivals[-1] * rate))


def _timestamp(text: str | None, path: str | Path) -> datetime:
    """The traces carry seven-digit fractions; a datetime holds six, and fromisoformat cuts the rest off."""
    try:
        return datetime.fromisoformat(text or "")
    except ValueError:
        raise DataError(f"{path}: {text!r} is not a timestamp") from None
