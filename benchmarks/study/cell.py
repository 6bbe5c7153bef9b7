"""One trial in plain numbers: what a results file keeps of it (benchmarks/results/README.md explains the fields).

Knows nothing of files, arms or other trials.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.exactness import Fork
from benchmarks.trial import Trial
from echo_sched.report import finite


def trial_numbers(trial: Trial) -> dict[str, Any]:
    counts = trial.counts
    return {
        "seconds": round(trial.duration, 5),
        "tokens": trial.num_output_tokens,
        "steady_seconds": _rounded(trial.steady_duration, 5),
        "steady_tokens": trial.num_steady_tokens,
        "steps": counts.num_steps,
        "decoding_steps": counts.num_decoding_steps,
        "steps_k_max_zero": counts.num_steps_k_max_zero,
        "steps_without_draft": counts.num_steps_without_draft,
        "draft_levels": counts.num_draft_levels,
        "root_steps": counts.num_root_steps,
        "prompt_tokens": counts.num_prompt_tokens,
        "nodes_verified": counts.num_verified_nodes,
        "nodes_accepted": counts.num_accepted_nodes,
        "nodes_widened": counts.num_widened,
        "nodes_transferred": counts.num_transferred,
        "truncated": {str(depth): counts.truncated[depth] for depth in sorted(counts.truncated)},
        "acceptance_length": round(trial.acceptance_length, 4),
        "utilisation": round(counts.draft_utilisation, 4),
        "phase_seconds": {phase: round(seconds, 4) for phase, seconds in trial.phase_seconds.items()},
        "requests": _requests(trial),
    }


def speed(cell: Mapping[str, Any]) -> float:
    """Tokens per second of the whole trial."""
    return float(cell["tokens"] / cell["seconds"])


def steady_speed(cell: Mapping[str, Any]) -> float | None:
    """Tokens per second while requests ended and others followed; None where the file does not say, or where there were
    fewer than two waves of requests: then whoever serves evenly ends them all at once, and hardly any time is left.
    """
    seconds = cell.get("steady_seconds")
    if not seconds or len(cell["requests"]["tokens"]) < 2 * cell["concurrency"]:
        return None
    return float(cell["steady_tokens"] / seconds)


def forks_row(forks: Sequence[Fork], margins: Sequence[float | None]) -> list[list[Any]]:
    """[request, position, reference's token, token, margin] of each."""
    return [[*fork, finite(_rounded(margin, 5))] for fork, margin in zip(forks, margins, strict=True)]


def _requests(trial: Trial) -> dict[str, list[Any]]:
    """Columns over the requests, in the block's order."""
    stats = trial.stats
    lengths = [[row.accepted_lengths[n] for n in range(max(row.accepted_lengths, default=-1) + 1)] for row in stats]
    return {
        "tokens": [len(output) for output in trial.outputs],
        "verify_steps": [row.num_verify_steps for row in stats],
        "accepted_lengths": lengths,
        "tpot_ms": [_milliseconds(outcome.tpot) for outcome in trial.outcomes],
        "p95_gap_ms": [_milliseconds(_p95(outcome.itl)) for outcome in trial.outcomes],
    }


def _p95(gaps: Sequence[float]) -> float | None:
    return float(np.percentile(gaps, 95)) if gaps else None


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 2)


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
