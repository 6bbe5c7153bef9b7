"""The raw files of the studies, with the questions that tables and figures ask of them."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.reproduce.intervals import Ratio, paired_ratio
from benchmarks.studies import STUDIES
from benchmarks.study import cell as one_trial
from benchmarks.study.file import read_results
from echo_sched.arms import REFERENCE

Cell = Mapping[str, Any]


class Results:
    """One study. A block is named as in the file; arms as the study declares them."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        self.blocks: Mapping[str, Mapping[str, Any]] = document["blocks"]
        self._cells: dict[tuple[str, str], dict[int, Cell]] = {}
        for cell in document["cells"]:
            self._cells.setdefault((cell["block"], cell["arm"]), {})[cell["repeat"]] = cell

    @property
    def quick(self) -> bool:
        return bool(self.document["quick"])

    @property
    def groups(self) -> list[str]:
        return list(dict.fromkeys(block["group"] for block in self.blocks.values()))

    @property
    def arms(self) -> list[str]:
        return list(dict.fromkeys(arm for block in self.blocks.values() for arm in block["arms"]))

    def of_group(self, group: str) -> dict[int, str]:
        """Concurrency -> block."""
        return {block["concurrency"]: name for name, block in self.blocks.items() if block["group"] == group}

    def with_arm(self, arm: str) -> dict[int, str]:
        """Concurrency -> the first block that has the arm."""
        found: dict[int, str] = {}
        for name, block in self.blocks.items():
            if arm in block["arms"]:
                found.setdefault(block["concurrency"], name)
        return found

    def cells(self, block: str, arm: str) -> list[Cell]:
        """By repeat; empty where the arm did not run."""
        found = self._cells.get((block, arm), {})
        return [found[repeat] for repeat in sorted(found)]

    def ratio(
        self, block: str, arm: str, over: str = REFERENCE, speed: Callable[[Cell], float | None] = one_trial.speed
    ) -> Ratio | None:
        """Of tokens per second, over the repeats in which both have them; None where there are none."""
        mine, others = (self._cells.get((block, name), {}) for name in (arm, over))
        pairs = [(speed(mine[repeat]), speed(others[repeat])) for repeat in sorted(mine.keys() & others.keys())]
        known = [(value, other) for value, other in pairs if value is not None and other is not None]
        return paired_ratio(*map(list, zip(*known, strict=True))) if known else None

    def total(self, block: str, arm: str, count: str) -> float:
        """A count of the cells, per repeat."""
        return fmean(cell[count] for cell in self.cells(block, arm))

    def speed(self, block: str, arm: str) -> float:
        """Median tokens per second."""
        return median(one_trial.speed(cell) for cell in self.cells(block, arm))

    def requests(self, block: str, arm: str, column: str) -> float:
        """Median over the requests of all repeats of `tpot_ms` or `p95_gap_ms`."""
        columns = [cell["requests"][column] for cell in self.cells(block, arm)]
        return float(median(value for values in columns for value in values if value is not None))

    def share_equal(self, block: str, arm: str) -> float | None:
        """Of requests, those with the tokens of plain decoding's first trial; None where nothing was compared."""
        cells = [cell for cell in self.cells(block, arm) if arm != REFERENCE or cell["repeat"] > 0]
        if not cells:
            return None
        num_compared: int = sum(cell["equality"]["num_compared"] for cell in cells)
        return 1 - sum(len(cell["equality"]["forks"]) for cell in cells) / num_compared

    def control(self, block: str) -> float | None:
        """Plain decoding against plain decoding at the next concurrency, on the requests that both served.

        The next higher one, at the highest the next lower; None where there is one only.
        """
        levels = self.of_group(self.blocks[block]["group"])
        order = sorted(levels)
        place = order.index(self.blocks[block]["concurrency"])
        other = order[place + 1] if place + 1 < len(order) else order[place - 1] if place else None
        references = self.document["references"]
        if other is None or block not in references or levels[other] not in references:
            return None
        pairs = list(zip(references[block], references[levels[other]], strict=False))
        return fmean(first == second for first, second in pairs)


class Library:
    """A folder of raw files."""

    def __init__(self, folder: Path) -> None:
        """Raises DataError where a file cannot be read."""
        self._folder = folder
        paths = {name: folder / f"{name}.json" for name in STUDIES}
        self._studies = {name: Results(read_results(path)) for name, path in paths.items() if path.exists()}

    def study(self, name: str) -> Results | None:
        """None where there is no file."""
        return self._studies.get(name)

    def simulation(self) -> Mapping[str, Any] | None:
        """What `echo-sched simulate` wrote; None where there is no file."""
        path = self._folder / "simulate.json"
        if not path.exists():
            return None
        document: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return document
