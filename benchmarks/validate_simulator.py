"""`python -m benchmarks.validate_simulator MEASURED SIMULATED [SIMULATED ...]`: how near the simulator comes to this
engine.

MEASURED is what `echo-sched bench compare --output` wrote, SIMULATED what `echo-sched simulate --output` did, for the
same arms at the same concurrencies on a trace of the same answers. A machine's speed may change meanwhile: of several
simulations, with costs timed before and after the measurement, the mean is held against it. Cells that did other work
are refused, not compared. Knows the documents and neither program.
"""

import argparse
import json
import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.workload import non_negative
from echo_sched.arms import REFERENCE
from echo_sched.cli import Parser, run
from echo_sched.errors import ConfigError, DataError
from echo_sched.provenance import command_line, provenance
from echo_sched.report import check_output, console, print_json, show_table, write_json

SAME_WORK = ("num_output_tokens", "num_prompt_tokens")
IRRELEVANT_TO_OFF = ("max_depth", "branching", "shapes")  # of trees that plain decoding does not have


class Cell(NamedTuple):
    """One arm at one concurrency, measured once and simulated once or more."""

    arm: str
    concurrency: str
    measured: dict[str, Any]
    simulations: Sequence[dict[str, Any]]

    @property
    def measured_speed(self) -> float:
        """Tokens per second."""
        return float(self.measured["output_throughput"])

    @property
    def simulated_speed(self) -> float:
        """Tokens per second, geometric mean."""
        speeds = [math.log(simulated["output_throughput"]) for simulated in self.simulations]
        return math.exp(sum(speeds) / len(speeds))

    @property
    def ratio(self) -> float:
        """Simulated over measured tokens per second."""
        return self.simulated_speed / self.measured_speed


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 where every cell is within the tolerance and no ranking differs, else 1."""
    args = _parser().parse_args(argv)
    if args.output is not None:
        check_output(args.output)
    cells = paired(_read(args.measured), [_read(path) for path in args.simulated])
    document = judged(cells, args.tolerance)
    if args.output is not None:
        facts = provenance(command_line("python -m benchmarks.validate_simulator", argv))
        write_json(args.output, document | {"files": [args.measured, *args.simulated], "provenance": facts})
    _show(cells, document)
    print_json({name: document[name] for name in ("within_tolerance", "same_rankings", "worst_ratio", "num_cells")})
    return 0 if document["within_tolerance"] and document["same_rankings"] else 1


def paired(measured: dict[str, Any], simulations: Sequence[dict[str, Any]]) -> list[Cell]:
    """Cells that all documents have. Raises ConfigError where there are none or where they did different things."""
    cells = []
    for arm, by_concurrency in measured["arms"].items():
        levels = [level for level in by_concurrency if all(level in s["arms"].get(arm, {}) for s in simulations)]
        if levels:
            for simulated in simulations:
                _check_settings(arm, measured["settings"][arm], simulated["settings"][arm])
        for level in levels:
            cell = Cell(arm, level, by_concurrency[level], [s["arms"][arm][level] for s in simulations])
            _check_work(cell)
            cells.append(cell)
    if not cells:
        raise ConfigError("the files have no arm at the same concurrency in common")
    return cells


def judged(cells: Sequence[Cell], tolerance: float) -> dict[str, Any]:
    """Ratios by arm and concurrency, rankings by concurrency, and whether all is well. JSON-able."""
    ratios: dict[str, dict[str, Any]] = {}
    for cell in cells:
        ratios.setdefault(cell.arm, {})[cell.concurrency] = {
            "ratio": cell.ratio,
            "measured": cell.measured_speed,
            "simulated": cell.simulated_speed,
            "simulations": [simulated["output_throughput"] for simulated in cell.simulations],
            "within_tolerance": abs(cell.ratio - 1) <= tolerance,
            "steps_ratio": _mean_steps(cell.simulations) / cell.measured["num_steps"],
        }
    levels = dict.fromkeys(cell.concurrency for cell in cells)
    rankings = {level: _ranking([cell for cell in cells if cell.concurrency == level]) for level in levels}
    found = [row for rows in ratios.values() for row in rows.values()]
    return {
        "tolerance": tolerance,
        "num_cells": len(cells),
        "ratios": ratios,
        "rankings": rankings,
        "worst_ratio": max((row["ratio"] for row in found), key=lambda ratio: abs(ratio - 1)),
        "within_tolerance": all(row["within_tolerance"] for row in found),
        "same_rankings": not any(ranking["swapped"] for ranking in rankings.values()),
    }


def _ranking(cells: Sequence[Cell]) -> dict[str, Any]:
    """Arms from the fastest on, and pairs that come in another order where the measurement tells them apart.

    Where two arms' repeats overlap the measurement has no order to hold the simulator to: those pairs are ties.
    """
    swapped: list[list[str]] = []
    ties: list[list[str]] = []
    for one, other in combinations(cells, 2):
        gap = one.measured_speed - other.measured_speed
        if gap * (one.simulated_speed - other.simulated_speed) < 0:
            (ties if _overlap(one.measured, other.measured) else swapped).append([one.arm, other.arm])
    orders = {
        kind: [cell.arm for cell in sorted(cells, key=lambda cell: -getattr(cell, f"{kind}_speed"))]
        for kind in ("measured", "simulated")
    }
    return {**orders, "swapped": swapped, "swapped_but_tied": ties}


def _mean_steps(simulations: Sequence[dict[str, Any]]) -> float:
    return sum(int(simulated["num_steps"]) for simulated in simulations) / len(simulations)


def _overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    (low, high), (other_low, other_high) = one["output_throughput_spread"], other["output_throughput_spread"]
    return bool(low <= other_high and other_low <= high)


def _check_settings(arm: str, measured: dict[str, Any], simulated: dict[str, Any]) -> None:
    for name, value in measured.items():
        if simulated.get(name) != value and not (arm == REFERENCE and name in IRRELEVANT_TO_OFF):
            raise ConfigError(f"arm {arm}: {name} was {value} when measured and {simulated.get(name)} when simulated")


def _check_work(cell: Cell) -> None:
    for name in SAME_WORK:
        for simulated in cell.simulations:
            if cell.measured[name] != simulated[name]:
                raise ConfigError(
                    f"arm {cell.arm} at concurrency {cell.concurrency}: {name} was {cell.measured[name]} when measured "
                    f"and {simulated[name]} when simulated; record the trace from the same prompts, with the same "
                    "--max-new-tokens, --chat-template and --ignore-eos, and simulate as many requests"
                )


def _read(path: str) -> dict[str, Any]:
    """Raises DataError."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict) or not all(isinstance(document.get(key), dict) for key in ("arms", "settings")):
        raise DataError(f"{path} was not written by this version's `bench compare` or `simulate`: no arms and settings")
    return document


def _show(cells: Sequence[Cell], document: dict[str, Any]) -> None:
    rows = []
    for cell in cells:
        row = document["ratios"][cell.arm][cell.concurrency]
        spread = "-".join(f"{speed:.1f}" for speed in cell.measured["output_throughput_spread"])
        columns = [row["measured"], spread, row["simulated"], row["ratio"], row["steps_ratio"]]
        rows.append([cell.arm, cell.concurrency, *columns, "yes" if row["within_tolerance"] else "NO"])
    columns = ["arm", "concurrency", "measured tok/s", "range", "simulated tok/s", "ratio", "steps ratio", "within"]
    show_table(f"Simulated against measured (within {document['tolerance']:.0%}?)", columns, rows)
    for level, ranking in document["rankings"].items():
        verdict = f"swapped: {ranking['swapped']}" if ranking["swapped"] else "no pair swapped"
        tied = f"; swapped but tied: {ranking['swapped_but_tied']}" if ranking["swapped_but_tied"] else ""
        console.print(f"ranking at {level}: measured {ranking['measured']}; {verdict}{tied}", markup=False)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "python -m benchmarks.validate_simulator",
        description="Hold a simulation against measurement: speed by arm and concurrency, and the ranking of the arms.",
    )
    parser.add_argument("measured", metavar="MEASURED", help="JSON file of `echo-sched bench compare --output`")
    parser.add_argument(
        "simulated",
        nargs="+",
        metavar="SIMULATED",
        help="JSON file of `echo-sched simulate --output`; of several, with costs timed at several moments, the mean",
    )
    parser.add_argument(
        "--tolerance", type=non_negative, default=0.1, metavar="X", help="share of the measured speed (default: 0.1)"
    )
    parser.add_argument("--output", metavar="FILE", help="JSON file to write")
    return parser


if __name__ == "__main__":
    run(main)
