"""Runs the trials of a comparison in a fair order and sums them up. Knows no command line and no files."""

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.exactness import MarginOf, Tokens, equality
from benchmarks.trial import Trial, run_trial
from echo_sched.arms import REFERENCE, Arm
from echo_sched.closed_loop import SharedEngine, fair_order
from echo_sched.types import Request, SamplingParams

WARMUP_TOKENS = 8  # enough steps to draft, verify and commit

Trials = dict[tuple[str, int], list[Trial]]  # (arm, concurrency) -> one per repeat, in the order they ran
Margin = Callable[[Tokens, Tokens, SamplingParams], float]  # (prompt, output before the choice, how it is made)


@dataclass(frozen=True)
class Plan:
    """What is compared on what."""

    arms: Sequence[Arm]
    concurrencies: Sequence[int]
    prompts: Sequence[tuple[int, ...]]
    params: SamplingParams  # request i samples with params.seed + i
    num_repeats: int
    num_warmups: int

    @property
    def num_requests(self) -> int:
        """Measured requests of all trials."""
        return len(self.arms) * len(self.concurrencies) * self.num_repeats * len(self.prompts)

    def order(self) -> Iterator[tuple[int, int, Arm]]:
        """(repeat, concurrency, arm) of all trials."""
        return fair_order(self.arms, self.concurrencies, self.num_repeats)

    def requests(self, label: str, num_requests: int, max_new_tokens: int) -> list[Request]:
        chosen = itertools.islice(itertools.cycle(self.prompts), num_requests)
        return [
            Request(f"{label}-{i}", prompt, self.request_params(i, max_new_tokens)) for i, prompt in enumerate(chosen)
        ]

    def request_params(self, index: int, max_new_tokens: int) -> SamplingParams:
        return replace(self.params, seed=self.params.seed + index, max_new_tokens=max_new_tokens)


def run_trials(engine: SharedEngine, plan: Plan, on_finish: Callable[[], None] = lambda: None) -> Trials:
    """Every arm at every concurrency, `num_repeats` times; each trial is warmed up first."""
    trials: Trials = {(arm.name, level): [] for arm in plan.arms for level in plan.concurrencies}
    for repeat, concurrency, arm in plan.order():
        current = engine.with_policy(arm.config)
        label = f"{arm.name}-{concurrency}-{repeat}"
        num_warm = min(WARMUP_TOKENS, plan.params.max_new_tokens)
        if plan.num_warmups:
            run_trial(current, plan.requests(f"warm-{label}", plan.num_warmups, num_warm), concurrency)
        measured = plan.requests(label, len(plan.prompts), plan.params.max_new_tokens)
        trials[arm.name, concurrency].append(run_trial(current, measured, concurrency, on_finish))
    return trials


def summarise(trials: Trials) -> dict[str, Any]:
    """`arms`: numbers per arm and concurrency. `ratios`: throughput over plain decoding's, paired by repeat."""
    arms: dict[str, dict[str, Any]] = {}
    ratios: dict[str, dict[str, Any]] = {}
    for (arm, concurrency), repeats in trials.items():
        cost = _draft_level_cost(repeats, trials[REFERENCE, concurrency])
        arms.setdefault(arm, {})[str(concurrency)] = {**_cell(repeats), "draft_level_cost": cost}
        if arm == REFERENCE:
            continue
        pairs = zip(repeats, trials[REFERENCE, concurrency], strict=True)
        values = [mine.output_throughput / plain.output_throughput for mine, plain in pairs]
        ratios.setdefault(arm, {})[str(concurrency)] = {
            "median": statistics.median(values),
            "range": [min(values), max(values)],
            "values": values,
        }
    return {"arms": arms, "ratios": ratios}


def check_exactness(trials: Trials, plan: Plan, margin: Margin) -> dict[str, Any]:
    """Every trial's tokens against the first trial of plain decoding at the same concurrency, and the control: plain
    decoding at the lowest concurrency against plain decoding at the highest (None where there is one level only)."""
    known: dict[tuple[int, int, Tokens], float] = {}

    def margin_of(request: int, position: int, before: Tokens) -> float:
        key = request, position, tuple(before)
        if key not in known:  # arms that fork at the same place share one forward
            params = plan.request_params(request, plan.params.max_new_tokens)
            known[key] = margin(plan.prompts[request], before, params)
        return known[key]

    arms: dict[str, dict[str, Any]] = {}
    for (arm, concurrency), repeats in trials.items():
        first = trials[REFERENCE, concurrency][0]
        if outputs := [trial.outputs for trial in repeats if trial is not first]:
            arms.setdefault(arm, {})[str(concurrency)] = equality(first.outputs, outputs, margin_of)
    control = _control(trials, plan, margin_of)
    compared = [cell for cells in arms.values() for cell in cells.values()] + ([control] if control else [])
    return {
        "reference": REFERENCE,
        "equal": all(cell["num_equal"] == cell["num_compared"] for cell in compared),
        "arms": arms,
        "control": control,
    }


def _control(trials: Trials, plan: Plan, margin_of: MarginOf) -> dict[str, Any] | None:
    low, high = min(plan.concurrencies), max(plan.concurrencies)
    if low == high:
        return None
    outputs = [trial.outputs for trial in trials[REFERENCE, high]]
    return {"concurrency": [low, high], **equality(trials[REFERENCE, low][0].outputs, outputs, margin_of)}


def _draft_level_cost(repeats: Sequence[Trial], plain: Sequence[Trial]) -> float | None:
    """Seconds of drafting per level over plain decoding's seconds of verification per step, paired by repeat.

    None where nothing was drafted.
    """
    pairs = [(mine.draft_seconds_per_level, other) for mine, other in zip(repeats, plain, strict=True)]
    ratios = [seconds / other.verify_seconds_per_step for seconds, other in pairs if seconds is not None]
    return statistics.median(ratios) if ratios else None


def _cell(repeats: Sequence[Trial]) -> dict[str, Any]:
    """Seconds and throughput over all repeats; counts of the first, which the others should equal."""
    throughputs = [trial.output_throughput for trial in repeats]
    first, counts = repeats[0], repeats[0].counts
    phases = dict.fromkeys(phase for trial in repeats for phase in trial.phase_seconds)
    return {
        "output_throughput": statistics.median(throughputs),
        "output_throughput_spread": [min(throughputs), max(throughputs)],
        "output_throughput_values": throughputs,
        "duration": statistics.median(trial.duration for trial in repeats),
        "seconds": {
            phase: statistics.median(trial.phase_seconds.get(phase, 0.0) for trial in repeats) for phase in phases
        },
        "repeatable": all(trial.counts == counts and trial.outputs == first.outputs for trial in repeats),
        "acceptance_length": first.acceptance_length,
        "acceptance": first.acceptance.summary(),
        "draft_utilisation": counts.draft_utilisation,
        "num_steps": counts.num_steps,
        "num_steps_without_draft": counts.num_steps_without_draft,
        "num_draft_levels": counts.num_draft_levels,
        "num_verified_nodes": counts.num_verified_nodes,
        "num_accepted_nodes": counts.num_accepted_nodes,
        "num_prompt_tokens": counts.num_prompt_tokens,
        "num_output_tokens": first.num_output_tokens,
        "truncated": {str(depth): counts.truncated[depth] for depth in sorted(counts.truncated)},
        "deepened": {str(depth): counts.deepened[depth] for depth in sorted(counts.deepened)},
        "num_widened": counts.num_widened,
        "num_transferred": counts.num_transferred,
    }
