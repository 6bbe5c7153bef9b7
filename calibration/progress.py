"""Shows how far a long run is: a bar on a terminal, a line every so often elsewhere. Always on stderr.

Knows nothing of what is being done.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def progress(title: str, clock: Callable[[], float] = time.monotonic) -> Iterator[Callable[[int, int], None]]:
    """Yields `report(done, total)`."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(title, clock)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _lines(title: str, clock: Callable[[], float]) -> Callable[[int, int], None]:
    last = clock()

    def report(done: int, total: int) -> None:
        nonlocal last
        if done == total or clock() - last >= SECONDS_BETWEEN_LINES:
            last = clock()
            print(f"{title}: {done} of {total}", file=sys.stderr, flush=True)

    return report
