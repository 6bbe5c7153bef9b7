"""What scheduling itself costs: host seconds of a step's decisions, and of the loop's own work around them, by batch.

    python -m benchmarks.scheduler_cost --output scheduler_cost.json

No model: offers are made up, eight candidates per request over four depths. `decisions` is plan, grants, finish, report
and observe; `grow` is what the decode loop adds to `schedule` while trees grow (the grants among it), `pack` and
`records` follow. Medians with quartiles; the exponent is the slope of log seconds over log batch size.
"""

import argparse
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.host_work import HostWork
from benchmarks.workload import concurrency_list, positive_int
from echo_sched.cli import Parser, run
from echo_sched.provenance import command_line, provenance
from echo_sched.report import check_output, print_json, progress_bar, show_table, write_json

POLICIES = ("echo", "goodput")
PARTS = ("decisions", "grow", "pack", "records")
NUM_WARMUPS = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 with a document at --output."""
    args = _parser().parse_args(argv)
    check_output(args.output)
    cells: dict[str, dict[str, Any]] = {policy: {} for policy in POLICIES}
    with progress_bar() as bar:
        task = bar.add_task("measuring", total=len(POLICIES) * len(args.batch))
        for batch_size in args.batch:
            for policy in POLICIES:
                cells[policy][str(batch_size)] = measure(HostWork(policy, batch_size), args.repeats)
                bar.advance(task)
    exponents = {policy: exponent(by_batch) for policy, by_batch in cells.items()}
    document = {
        "policies": cells,
        "exponents": exponents,
        "args": vars(args),
        **provenance(command_line("python -m benchmarks.scheduler_cost", argv)),
    }
    write_json(args.output, document)
    show_table(
        "milliseconds per step, median",
        ("policy, batch", "candidates", "nodes", "quartiles of decisions", *PARTS),
        [_row(f"{policy}, {batch}", cell) for policy, by_batch in cells.items() for batch, cell in by_batch.items()],
    )
    print_json({"output": args.output, "exponents": exponents})
    return 0


def measure(work: HostWork, num_repeats: int) -> dict[str, Any]:
    """One batch size under one policy: what a step decides on, and seconds of each part."""
    laps: dict[str, list[float]] = {part: [] for part in PARTS}
    for repeat in range(NUM_WARMUPS + num_repeats):
        seconds, report = work.decide()
        for part, taken in ({"decisions": seconds} | work.serve()).items():
            if repeat >= NUM_WARMUPS:
                laps[part].append(taken)
    return {
        "num_candidates": report.num_offered,
        "num_levels": report.num_levels,
        "num_nodes": int(report.num_nodes.sum()),
        "seconds": {part: _spread(values) for part, values in laps.items()},
    }


def exponent(by_batch: dict[str, Any]) -> float | None:
    """Slope of log seconds of the decisions over log batch size, by least squares; None with one size only."""
    if len(by_batch) < 2:
        return None
    sizes = [math.log(int(batch)) for batch in by_batch]
    seconds = [math.log(cell["seconds"]["decisions"]["median"]) for cell in by_batch.values()]
    return float(np.polyfit(sizes, seconds, 1)[0])


def _spread(values: Sequence[float]) -> dict[str, float]:
    low, median, high = np.percentile(values, (25, 50, 75)).tolist()
    return {"median": median, "p25": low, "p75": high, "min": min(values)}


def _row(label: str, cell: dict[str, Any]) -> list[Any]:
    seconds = cell["seconds"]
    quartiles = "-".join(f"{1000 * seconds['decisions'][name]:.2f}" for name in ("p25", "p75"))
    medians = [1000 * seconds[part]["median"] for part in PARTS]
    return [label, cell["num_candidates"], cell["num_nodes"], quartiles, *medians]


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "python -m benchmarks.scheduler_cost",
        description="Time the scheduler's decisions, and the loop's own work around them, on made-up offers.",
        epilog="Example: python -m benchmarks.scheduler_cost --batch 16,64,256,1024 --output scheduler_cost.json",
    )
    parser.add_argument(
        "--batch",
        type=concurrency_list,
        default=[16, 64, 256, 1024],
        metavar="N[,N...]",
        help="decoding requests of a step (default: 16,64,256,1024)",
    )
    parser.add_argument(
        "--repeats", type=positive_int, default=100, metavar="N", help="steps timed at each size (default: %(default)s)"
    )
    parser.add_argument("--output", required=True, metavar="FILE", help="JSON file to write")
    return parser


if __name__ == "__main__":
    run(main)
