"""How near the simulator comes to this engine: `python -m benchmarks.validate_simulator --measured M --simulated S`.

Measured is what `echo-sched bench compare --output` wrote, simulated what `echo-sched simulate --output` did, for the
same arms at the same concurrencies on a trace of the same answers. A machine's speed may change meanwhile: of several
measurements, and of several simulations with costs timed between them, the means are held against each other. What an
arm gains over plain decoding, measured in the same minutes, hangs less on that: its ratio stands beside. Cells that did
other work are refused, not compared. Knows the documents and neither program.
"""

import argparse
import json
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean, geometric_mean
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
    """One arm at one concurrency, as each file has it."""

    arm: str
    concurrency: str
    measurements: Sequence[dict[str, Any]]
    simulations: Sequence[dict[str, Any]]

    @property
    def measured_speed(self) -> float:
        """Tokens per second, geometric mean."""
        return geometric_mean(_speeds(self.measurements))

    @property
    def measured_range(self) -> tuple[float, float]:
        """Tokens per second of the slowest and of the fastest repeat."""
        lows, highs = zip(*(measured["output_throughput_spread"] for measured in self.measurements), strict=True)
        return min(lows), max(highs)

    @property
    def simulated_speed(self) -> float:
        """Tokens per second, geometric mean."""
        return geometric_mean(_speeds(self.simulations))

    @property
    def ratio(self) -> float:
        """Simulated over measured tokens per second."""
        return self.simulated_speed / self.measured_speed


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 where every cell is within the tolerance and no ranking differs, else 1."""
    args = _parser().parse_args(argv)
    if args.output is not None:
        check_output(args.output)
    cells = paired([_read(path) for path in args.measured], [_read(path) for path in args.simulated])
    document = judged(cells, args.tolerance)
    if args.output is not None:
        facts = provenance(command_line("python -m benchmarks.validate_simulator", argv))
        write_json(args.output, document | {"files": [*args.measured, *args.simulated], "provenance": facts})
    _show(cells, document)
    print_json({name: document[name] for name in ("within_tolerance", "same_rankings", "worst_ratio", "num_cells")})
    return 0 if document["within_tolerance"] and document["same_rankings"] else 1


def paired(measurements: Sequence[dict[str, Any]], simulations: Sequence[dict[str, Any]]) -> list[Cell]:
    """Cells that all documents have. Raises ConfigError where there are none or where they did different things."""
    first, *others = documents = [*measurements, *simulations]
    cells = []
    for arm, by_concurrency in first["arms"].items():
        levels = [level for level in by_concurrency if all(level in other["arms"].get(arm, {}) for other in others)]
        if levels:
            for other in others:
                _check_settings(arm, first["settings"][arm], other["settings"][arm])
        for level in levels:
            found = [document["arms"][arm][level] for document in documents]
            cell = Cell(arm, level, found[: len(measurements)], found[len(measurements) :])
            _check_work(arm, level, found)
            cells.append(cell)
    if not cells:
        raise ConfigError("the files have no arm at the same concurrency in common")
    return cells


def judged(cells: Sequence[Cell], tolerance: float) -> dict[str, Any]:
    """Ratios by arm and concurrency, rankings by concurrency, and whether all is well. JSON-able.

    `gain_ratio`: the same ratio of speeds over plain decoding's; None where that is not among the cells.
    """
    ratios: dict[str, dict[str, Any]] = {}
    plain = {cell.concurrency: cell.ratio for cell in cells if cell.arm == REFERENCE}
    for cell in cells:
        ratios.setdefault(cell.arm, {})[cell.concurrency] = {
            "ratio": cell.ratio,
            "measured": cell.measured_speed,
            "simulated": cell.simulated_speed,
            "measurements": _speeds(cell.measurements),
            "simulations": _speeds(cell.simulations),
            "within_tolerance": abs(cell.ratio - 1) <= tolerance,
            "gain_ratio": cell.ratio / plain[cell.concurrency] if cell.concurrency in plain else None,
            "steps_ratio": _mean_steps(cell.simulations) / _mean_steps(cell.measurements),
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
            (ties if _overlap(one.measured_range, other.measured_range) else swapped).append([one.arm, other.arm])
    orders = {
        kind: [cell.arm for cell in sorted(cells, key=lambda cell: -getattr(cell, f"{kind}_speed"))]
        for kind in ("measured", "simulated")
    }
    return {**orders, "swapped": swapped, "swapped_but_tied": ties}


def _speeds(cells: Sequence[dict[str, Any]]) -> list[float]:
    """Tokens per second in each file."""
    return [float(cell["output_throughput"]) for cell in cells]


def _mean_steps(cells: Sequence[dict[str, Any]]) -> float:
    return fmean(int(cell["num_steps"]) for cell in cells)


def _overlap(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def _check_settings(arm: str, first: dict[str, Any], other: dict[str, Any]) -> None:
    for name, value in first.items():
        if other.get(name) != value and not (arm == REFERENCE and name in IRRELEVANT_TO_OFF):
            raise ConfigError(f"arm {arm}: {name} is {value} in the first file and {other.get(name)} in another")


def _check_work(arm: str, concurrency: str, cells: Sequence[dict[str, Any]]) -> None:
    for name in SAME_WORK:
        for other in cells[1:]:
            if other[name] != cells[0][name]:
                raise ConfigError(
                    f"arm {arm} at concurrency {concurrency}: {name} is {cells[0][name]} in the first file and "
                    f"{other[name]} in another; record the trace from the same prompts, with the same "
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
        spread = "-".join(f"{speed:.1f}" for speed in cell.measured_range)
        columns = [
            row["measured"],
            spread,
            *(row[name] for name in ("simulated", "ratio", "gain_ratio", "steps_ratio")),
        ]
        rows.append([cell.arm, cell.concurrency, *columns, "yes" if row["within_tolerance"] else "NO"])
    columns = [
        "arm",
        "concurrency",
        "measured tok/s",
        "range",
        "simulated tok/s",
        "ratio",
        "over off",
        "steps",
        "within",
    ]
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
    for name, program in (("measured", "bench compare"), ("simulated", "simulate")):
        parser.add_argument(
            f"--{name}",
            nargs="+",
            required=True,
            metavar="FILE",
            help=f"JSON files of `echo-sched {program} --output`; of several, made at several moments, the mean counts",
        )
    parser.add_argument(
        "--tolerance", type=non_negative, default=0.1, metavar="X", help="share of the measured speed (default: 0.1)"
    )
    parser.add_argument("--output", metavar="FILE", help="JSON file to write")
    return parser


if __name__ == "__main__":
    run(main)
