"""Arms in turn on the same prompts, and what came of them: medians, spread, ratios by repeat. Knows no verdict."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from calibration.advise.trial import Trial, run_trial
from echo_sched.arms import REFERENCE, Arm
from echo_sched.closed_loop import SharedEngine, fair_order
from echo_sched.types import Request

WARMUP_TOKENS = 8  # enough steps to draft, verify and commit


@dataclass(frozen=True)
class Workload:
    """What every arm answers."""

    requests: Sequence[Request]  # as drawn; every trial gets copies
    num_repeats: int

    def copies(self, label: str, max_new_tokens: int | None = None, temperature: float | None = None) -> list[Request]:
        """Fresh requests, with other limits where they are given."""
        copies = []
        for number, request in enumerate(self.requests):
            params = request.params
            if max_new_tokens is not None:
                params = replace(params, max_new_tokens=min(max_new_tokens, params.max_new_tokens))
            if temperature is not None:
                params = replace(params, temperature=temperature)
            copies.append(Request(f"{label}/{number}", request.prompt_ids, params))
        return copies


def run_arms(
    engine: SharedEngine, arms: Sequence[Arm], workload: Workload, concurrency: int, on_trial: Callable[[], None]
) -> dict[str, list[Trial]]:
    """Every arm `num_repeats` times, warmed up, one after the other within each repeat."""
    trials: dict[str, list[Trial]] = {arm.name: [] for arm in arms}
    for repeat, level, arm in fair_order(arms, [concurrency], workload.num_repeats):
        current = engine.with_policy(arm.config)
        label = f"{arm.name} {level} {repeat}"
        run_trial(current, workload.copies(f"warm {label}", WARMUP_TOKENS)[:level], level)
        grown = arm.config.policy == "table"  # and verified as it grew
        trials[arm.name].append(run_trial(current, workload.copies(label), level, siblings=grown))
        on_trial()
    return trials


def summarise(trials: dict[str, list[Trial]]) -> dict[str, dict[str, Any]]:
    """By arm: seconds over all repeats, ratios to plain decoding, counts of the first repeat. JSON-able."""
    return {arm: _row(repeats, trials[REFERENCE]) for arm, repeats in trials.items()}


def paired_ratios(mine: Sequence[Trial], other: Sequence[Trial]) -> list[float]:
    return [one.speed / two.speed for one, two in zip(mine, other, strict=True)]


def _row(repeats: Sequence[Trial], plain: Sequence[Trial]) -> dict[str, Any]:
    speeds, ratios = [trial.speed for trial in repeats], paired_ratios(repeats, plain)
    first = repeats[0].counts.to_json()
    return {
        "tokens_per_second": statistics.median(speeds),
        "tokens_per_second_range": [min(speeds), max(speeds)],
        "ratio_to_off": statistics.median(ratios),
        "ratio_to_off_range": [min(ratios), max(ratios)],
        "gap_ms_p95": 1000 * statistics.median(trial.gap_p95 for trial in repeats),
        "seconds": {
            phase: statistics.median(trial.phase_seconds.get(phase, 0.0) for trial in repeats)
            for phase in repeats[0].phase_seconds
        },
        "repeatable": all(trial.counts.to_json() == first for trial in repeats),
        **first,
    }
