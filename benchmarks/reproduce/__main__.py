"""`make reproduce`: docs/results.md and its figures, made again from benchmarks/results. Needs no model."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.reproduce.bars import bars_block
from benchmarks.reproduce.controls import controls_block, learning_block
from benchmarks.reproduce.equality import equality_block
from benchmarks.reproduce.figures import figures
from benchmarks.reproduce.foresight import foresight_block
from benchmarks.reproduce.library import Library
from benchmarks.reproduce.page import fill
from benchmarks.reproduce.source import pareto_block, source_block, verdicts_block
from benchmarks.reproduce.sweeps import domains_block, grid_block, kmax_block, ready_block, temperature_block
from echo_sched.cli import Parser, run
from echo_sched.report import print_json

REPOSITORY = Path(__file__).resolve().parents[2]
BLOCKS: dict[str, Callable[[Library], str]] = {
    "verdicts": verdicts_block,
    "source": source_block,
    "bars": bars_block,
    "pareto": pareto_block,
    "grid": grid_block,
    "controls": controls_block,
    "foresight": foresight_block,
    "equality": equality_block,
    "kmax": kmax_block,
    "ready": ready_block,
    "temperature": temperature_block,
    "learning": learning_block,
    "domains": domains_block,
}


def rebuild(results: Path, docs: Path) -> dict[Path, str]:
    """Every file that the raw files lead to, with the text that it should hold. Raises DataError."""
    library = Library(results)
    page = docs / "results.md"
    files = {page: fill(page.read_text(encoding="utf-8"), {name: make(library) for name, make in BLOCKS.items()})}
    return files | {docs / "figures" / name: text for name, text in figures(library).items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0."""
    args = _parser().parse_args(argv)
    changed = []
    for path, text in rebuild(args.results, args.docs).items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            changed.append(str(path))
    print_json({"changed": changed})
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser("python -m benchmarks.reproduce", description=__doc__)
    add = parser.add_argument
    add("--results", type=Path, default=REPOSITORY / "benchmarks" / "results", metavar="DIR", help="raw files")
    add("--docs", type=Path, default=REPOSITORY / "docs", metavar="DIR", help="holds results.md and figures/")
    return parser


if __name__ == "__main__":
    run(main)
