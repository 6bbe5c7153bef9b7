"""Runs the trials of a comparison and sums them up, arm by arm. Knows no command line and no files."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.exactness import MarginOf, equality
from benchmarks.plan import Block, Margin, Plan
from benchmarks.trial import Trial
from echo_sched.arms import REFERENCE, Arm
from echo_sched.closed_loop import SharedEngine
from echo_sched.types import SamplingParams

Trials = dict[tuple[str, int], list[Trial]]  # (arm, concurrency) -> one per repeat, in the order they ran


def plan_of(
    arms: Sequence[Arm],
    concurrencies: Sequence[int],
    prompts: Sequence[tuple[int, ...]],
    params: SamplingParams,
    num_repeats: int,
    num_warmups: int,
    turn_seconds: float,
) -> Plan:
    """Every arm on the same requests, a block for each concurrency."""
    blocks = [Block(str(level), arms, level, prompts, params) for level in concurrencies]
    return Plan(blocks, num_repeats, num_warmups, turn_seconds)


def run_trials(engine: SharedEngine, plan: Plan, on_finish: Callable[[], None] = lambda: None) -> Trials:
    trials: Trials = {(arm.name, block.concurrency): [] for block in plan.blocks for arm in block.arms}
    for repeat, block in plan.order():
        for arm, trial in plan.run(engine, repeat, block, on_finish).items():
            trials[arm, block.concurrency].append(trial)
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
    margin_of = plan.blocks[0].margins(margin)  # all blocks have the same requests
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
    levels = [block.concurrency for block in plan.blocks]
    low, high = min(levels), max(levels)
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
