"""What a simulated run comes to: speed, acceptance, latency and fairness, as plain numbers. Undefined ones are None."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from calibration.simulate.simulated import Served, SimulatedRun

PERCENTILES = (50, 95, 99)


def figures(run: SimulatedRun) -> dict[str, Any]:
    """JSON-able. Seconds are the cost table's, per-request speeds are tokens over seconds since admission.

    Fairness is Jain's index of those speeds.
    """
    decoding = [step for step in run.steps if step.num_decoding]
    num_verified = sum(step.num_verified for step in run.steps)
    num_accepted = sum(step.num_accepted for step in run.steps)
    num_roots = sum(step.num_decoding for step in run.steps)
    num_tokens = sum(step.num_emitted for step in run.steps)
    # a request's first token comes from its prompt, not from a verify step
    from_drafts = num_tokens - len(run.served)
    return {
        "output_throughput": num_tokens / run.duration,
        "duration": run.duration,
        "num_output_tokens": num_tokens,
        "num_prompt_tokens": sum(step.num_prompt_tokens for step in run.steps),
        "num_requests": len(run.served),
        "acceptance_length": from_drafts / num_roots if num_roots else None,
        "draft_utilisation": num_accepted / num_verified if num_verified else None,
        "num_steps": len(run.steps),
        "num_verified_nodes": num_verified,
        "num_accepted_nodes": num_accepted,
        "num_draft_levels": sum(step.num_levels for step in run.steps),
        "share_k_max_zero": _share([step.k_max == 0 for step in decoding]),
        "num_k_max_switches": sum(earlier.k_max != later.k_max for earlier, later in pairwise(decoding)),
        "share_cut": sum(step.num_cut for step in run.steps) / num_roots if num_roots else None,
        "step_seconds": percentiles([step.seconds for step in run.steps]),
        "request_seconds": percentiles([request.seconds for request in run.served]),
        "latency_ms": latencies(run.served),
        "fairness": jain([request.num_output_tokens / request.seconds for request in run.served]),
    }


def latencies(served: Sequence[Served]) -> dict[str, dict[str, float] | None]:
    """As `bench load` measures them, in milliseconds: to the first token, per token after it, between outputs.

    None where no request has a second token.
    """
    paced = [request for request in served if request.num_output_tokens > 1]
    measured = {
        "ttft": [request.output_times[0] - request.arrived_at for request in served],
        "tpot": [(r.output_times[-1] - r.output_times[0]) / (r.num_output_tokens - 1) for r in paced],
        "itl": [later - earlier for request in paced for earlier, later in pairwise(request.output_times)],
    }
    return {
        name: percentiles([1000 * value for value in values]) if values else None for name, values in measured.items()
    }


def percentiles(values: Sequence[float]) -> dict[str, float]:
    return {f"p{percent}": float(np.percentile(values, percent)) for percent in PERCENTILES}


def jain(values: Sequence[float]) -> float:
    """Jain's fairness index: 1 where all are equal, 1 / n where one has everything."""
    array = np.asarray(values, np.float64)
    return float(array.sum() ** 2 / (len(array) * (array**2).sum()))


def _share(flags: Sequence[bool]) -> float | None:
    return sum(flags) / len(flags) if flags else None
