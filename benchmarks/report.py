"""How every benchmark reports: tables and progress for people on stderr, JSON for machines in a file and on stdout.

Knows nothing of what was measured.
"""

import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from echo_sched.errors import ConfigError

# where no terminal says how wide it is, tables must not be cut to rich's 80 columns
console = Console(stderr=True, width=None if sys.stderr.isatty() else 120)


def progress_bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table on stderr; the first column is left-aligned, numbers are shortened, None is a dash.

    Headings break between words, and the first column where it is too wide, so that no number is cut off.
    """
    table = Table(title=title, box=box.SIMPLE_HEAD)
    cells = [[_cell(value) for value in row] for row in rows]
    table.add_column(columns[0], overflow="fold")
    for index, column in enumerate(columns[1:], start=1):
        words = [*column.split(), *(row[index] for row in cells)]
        table.add_column(column, justify="right", width=max(map(len, words)))
    for row in cells:
        table.add_row(*row)
    console.print(table)


def check_output(path: str | Path, flag: str = "--output") -> None:
    """Raises ConfigError where a file could not be written: better now than after an hour of measuring."""
    target = Path(path)
    if target.is_dir():
        raise ConfigError(f"{flag} {target}: is a folder")
    if not target.parent.is_dir():
        raise ConfigError(f"{flag} {target}: there is no folder {target.parent}")
    if not os.access(target if target.exists() else target.parent, os.W_OK):
        raise ConfigError(f"{flag} {target}: not writable")


def write_json(path: str | Path, document: dict[str, Any]) -> None:
    try:
        Path(path).write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def print_json(document: dict[str, Any]) -> None:
    """One line on stdout."""
    print(json.dumps(document, allow_nan=False), flush=True)


def finite(value: Any) -> Any:
    """JSON has no infinity: it becomes a word; anything else stays."""
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"
    return str(value)
