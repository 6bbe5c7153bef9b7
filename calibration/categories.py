"""What kinds of prompts there were, and how each was drafted for: code, maths, chat, other.

A row's own category decides, else the name of its file. Knows readings and requests; no model.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from echo_sched.scheduler.separation import auc
from echo_sched.types import GateReading, Request

OTHER = "other"
WORDS = {  # found anywhere in a category or a file's name; the categories of MT-bench are among them
    "code": ("code", "coding", "program", "python", "humaneval", "mbpp"),
    "maths": ("math", "gsm8k", "aqua", "arithmetic"),
    "chat": (
        "chat", "conversation", "dialog", "arena", "oasst", "instruct", "ifeval", "mt_bench", "writing", "roleplay",
        "reasoning", "extraction", "stem", "humanities",
    ),
}  # fmt: skip


class CategoryStats(NamedTuple):
    """One kind of prompts. Tuples by depth are [max_depth]; None where nothing was read, or one class only."""

    category: str
    num_prompts: int
    share_of_steps: float  # of all requests' verify steps
    tokens_per_step: float | None  # bonus included
    acceptance: tuple[float | None, ...]  # share of requests with offers at each depth whose path reached it
    auc: tuple[float | None, ...]


def category_of(category: str | None, file_name: str) -> str:
    """One of WORDS' keys, or OTHER."""
    for text in (category or "", file_name):
        for kind, words in WORDS.items():
            if any(word in text.lower() for word in words):
                return kind
    return OTHER


def category_stats(
    readings: Sequence[GateReading], requests: Sequence[Request], kinds: Mapping[str, str], max_depth: int
) -> tuple[CategoryStats, ...]:
    """By name. `kinds`: category by request id; `requests` are finished."""
    num_steps = sum(request.stats.num_verify_steps for request in requests)
    return tuple(
        _stats(
            kind,
            [reading for reading in readings if kinds[reading.request_id] == kind],
            [request for request in requests if kinds[request.request_id] == kind],
            num_steps,
            max_depth,
        )
        for kind in sorted({kinds[request.request_id] for request in requests})
    )


def _stats(
    kind: str, readings: Sequence[GateReading], requests: Sequence[Request], num_steps: int, max_depth: int
) -> CategoryStats:
    depth = np.array([reading.depth for reading in readings], np.int64)
    confidence = np.array([reading.confidence for reading in readings], np.float64)
    accepted = np.array([reading.accepted for reading in readings], np.bool_)
    rows = [depth == level for level in range(1, max_depth + 1)]
    mine = sum(request.stats.num_verify_steps for request in requests)
    emitted = sum(request.stats.num_emitted for request in requests)
    return CategoryStats(
        category=kind,
        num_prompts=len(requests),
        share_of_steps=mine / num_steps if num_steps else 0.0,
        tokens_per_step=emitted / mine if mine else None,
        acceptance=tuple(float(accepted[at].mean()) if at.any() else None for at in rows),
        auc=tuple(auc(confidence[at], accepted[at]) for at in rows),
    )
