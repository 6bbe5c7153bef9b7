"""Runs what a study's file does not hold yet. Knows no command line."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from statistics import mean
from typing import Any

from benchmarks.exactness import MarginOf, Tokens, find_forks
from benchmarks.plan import Margin, Plan
from benchmarks.study.cell import forks_row, trial_numbers
from benchmarks.study.file import ResultsFile
from benchmarks.trial import Trial
from echo_sched.arms import REFERENCE
from echo_sched.closed_loop import SharedEngine

Tell = Callable[[str], None]


def run_missing(
    engine: SharedEngine, plan: Plan, results: ResultsFile, margin: Margin, num_margins: int, tell: Tell
) -> None:
    """In the plan's order, the file written after each repeat of a block. `num_margins`: see Study."""
    order = list(plan.order())
    missing = [(repeat, block) for repeat, block in order if not results.has(repeat, block.name)]
    tell(f"{len(missing)} of {len(order)} repeats of blocks to run")
    margins = {block.name: block.margins(margin) for block in plan.blocks}
    took: dict[str, float] = {}  # block -> seconds of its latest repeat, warm-ups included
    for index, (repeat, block) in enumerate(missing):
        start = time.perf_counter()
        trials = plan.run(engine, repeat, block)
        if results.reference(block.name) is None:
            results.set_reference(block.name, trials[REFERENCE].outputs)
        num_known = num_margins if repeat == 0 else 0
        results.append(
            [
                {
                    "block": block.name,
                    "concurrency": block.concurrency,
                    "arm": arm,
                    "repeat": repeat,
                    "ended": datetime.now(UTC).isoformat(timespec="seconds"),
                    **trial_numbers(trial),
                    "equality": _equality(trial, results.reference(block.name), margins[block.name], num_known),
                }
                for arm, trial in trials.items()
            ]
        )
        took[block.name] = time.perf_counter() - start
        left = _seconds_left([later.name for _, later in missing[index + 1 :]], took)
        speeds = ", ".join(f"{arm} {trial.output_throughput:.1f}" for arm, trial in trials.items())
        tell(f"{index + 1}/{len(missing)} {block.name} repeat {repeat}, tokens/s: {speeds}; {left / 60:.0f} min left")


def _equality(
    trial: Trial, reference: Sequence[Tokens] | None, margin_of: MarginOf, num_margins: int
) -> dict[str, Any]:
    """Requests whose tokens are those of plain decoding's first trial in this block, and where the others fork."""
    assert reference is not None, "plain decoding has run first"
    forks = find_forks(reference, trial.outputs)
    margins: list[float | None] = [
        margin_of(fork.request, fork.position, reference[fork.request][: fork.position])
        if index < num_margins
        else None
        for index, fork in enumerate(forks)
    ]
    return {"num_compared": len(reference), "forks": forks_row(forks, margins)}


def _seconds_left(todo: Sequence[str], took: Mapping[str, float]) -> float:
    """Each as long as its latest repeat; a block that was not seen yet as the mean of those that were."""
    return sum(took.get(block, mean(took.values())) for block in todo)
