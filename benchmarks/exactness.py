"""Did two runs of the same requests emit the same tokens? And if not: where, and how close was the choice there?

A fork is the first difference of one request. Its margin is how near the reference's choice at that position was to
going the other way: a small one means rounding, a large one means a bug. Knows nothing of how the tokens were made.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from echo_sched.report import finite

Tokens = Sequence[int]
# (request, position, the reference's tokens before the fork) -> margin
MarginOf = Callable[[int, int, Tokens], float]


class Fork(NamedTuple):
    """The first difference of one request. A token is None where that side had already ended."""

    request: int  # index in the workload
    position: int  # among the output tokens
    reference_token: int | None
    token: int | None


def find_forks(reference: Sequence[Tokens], outputs: Sequence[Tokens]) -> list[Fork]:
    """At most one fork per request. Both hold the same requests in the same order."""
    forks = []
    for request, (expected, actual) in enumerate(zip(reference, outputs, strict=True)):
        if tuple(expected) == tuple(actual):
            continue
        shared = min(len(expected), len(actual))
        position = next((i for i in range(shared) if expected[i] != actual[i]), shared)
        forks.append(Fork(request, position, _at(expected, position), _at(actual, position)))
    return forks


def equality(reference: Sequence[Tokens], runs: Sequence[Sequence[Tokens]], margin_of: MarginOf) -> dict[str, Any]:
    """How many outputs of all `runs` equal the reference's, and every fork with its margin."""
    forks: list[dict[str, Any]] = []
    margins: list[float] = []
    for repeat, outputs in enumerate(runs):
        for fork in find_forks(reference, outputs):
            margin = margin_of(fork.request, fork.position, tuple(reference[fork.request][: fork.position]))
            margins.append(margin)
            forks.append({"repeat": repeat, **fork._asdict(), "margin": finite(margin)})
    num_compared = len(reference) * len(runs)
    return {
        "num_compared": num_compared,
        "num_equal": num_compared - len(forks),
        "share_equal": (num_compared - len(forks)) / num_compared,
        "largest_margin": finite(max(margins, default=None)),
        "forks": forks,
    }


def _at(tokens: Tokens, position: int) -> int | None:
    return tokens[position] if position < len(tokens) else None
