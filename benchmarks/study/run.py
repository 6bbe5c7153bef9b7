"""Runs the trials of a study that its file does not hold yet. Knows no command line."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from statistics import mean
from typing import Any

from benchmarks.exactness import MarginOf, Tokens, find_forks
from benchmarks.plan import Margin, Plan
from benchmarks.study.cell import forks_row, trial_numbers
from benchmarks.study.file import ResultsFile
from benchmarks.trial import SharedEngine, Trial
from echo_sched.arms import REFERENCE

Tell = Callable[[str], None]


def run_missing(
    engine: SharedEngine, plan: Plan, results: ResultsFile, margin: Margin, num_margins: int, tell: Tell
) -> None:
    """In the plan's order, the file written after each. `num_margins`: see Study."""
    order = list(plan.order())
    missing = [entry for entry in order if not results.has(entry[0], entry[1].name, entry[2].name)]
    tell(f"{len(missing)} of {len(order)} trials to run")
    margins = {block.name: block.margins(margin) for block in plan.blocks}
    took: dict[tuple[str, str], float] = {}  # (block, arm) -> seconds of its latest trial, warm-up included
    places = {(repeat, block.name, arm.name): place for place, (repeat, block, arm) in enumerate(order)}
    for index, (repeat, block, arm) in enumerate(missing):
        start = time.perf_counter()
        trial = plan.run(engine, repeat, block, arm)
        if arm.name == REFERENCE and results.reference(block.name) is None:
            results.set_reference(block.name, trial.outputs)
        cell = {
            "block": block.name,
            "concurrency": block.concurrency,
            "arm": arm.name,
            "repeat": repeat,
            "place": places[repeat, block.name, arm.name],
            "ended": datetime.now(UTC).isoformat(timespec="seconds"),
            **trial_numbers(trial),
            "equality": _equality(
                trial, results.reference(block.name), margins[block.name], num_margins if repeat == 0 else 0
            ),
        }
        results.append(cell)
        took[block.name, arm.name] = time.perf_counter() - start
        left = _seconds_left([(later.name, other.name) for _, later, other in missing[index + 1 :]], took)
        tell(
            f"{index + 1}/{len(missing)} {block.name} repeat {repeat} {arm.name}: "
            f"{trial.output_throughput:.1f} tokens/s, about {left / 60:.1f} min left"
        )


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


def _seconds_left(todo: Sequence[tuple[str, str]], took: Mapping[tuple[str, str], float]) -> float:
    """Each as long as its latest trial; one that was not seen yet as its block's mean, else as everything's."""
    everything = mean(took.values())

    def guess(block: str, arm: str) -> float:
        same = [seconds for (other, _), seconds in took.items() if other == block]
        return took.get((block, arm)) or (mean(same) if same else everything)

    return sum(guess(*entry) for entry in todo)
