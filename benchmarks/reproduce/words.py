"""Numbers and tables as docs/results.md shows them."""

from collections.abc import Sequence

from benchmarks.reproduce.intervals import Ratio

NOTHING = "–"


def missing(study: str) -> str:
    return f"Not measured yet: `python -m benchmarks.study {study}`."


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value: float | None, digits: int = 2) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.0f} %"


def ratio(value: Ratio | None) -> str:
    """Mean and interval, or the mean alone for a single repeat."""
    if value is None:
        return NOTHING
    return f"{value.mean:.2f}" if value.low is None else f"{value.mean:.2f} [{value.low:.2f}, {value.high:.2f}]"


def verdict(met: bool | None) -> str:
    """None: it cannot be judged yet."""
    return "not judged" if met is None else "met" if met else "missed"
