"""The prompts of a benchmark and how they are to be answered, with the flags that every benchmark shares.

Knows nothing of servers or engines.
"""

import argparse
import math
from itertools import cycle, islice
from typing import Any, NamedTuple

from echo_sched.prompts import Prompt, load_prompts


class Workload(NamedTuple):
    """The prompts of a run in the order they are sent, and the facts of the file they came from."""

    prompts: list[Prompt]
    facts: dict[str, Any]


def read_workload(path: str, num_prompts: int | None) -> Workload:
    """The first `num_prompts` usable rows (default: all); a shorter file is repeated. Raises DataError."""
    file = load_prompts(path, max_prompts=num_prompts)
    wanted = num_prompts or len(file.prompts)
    facts = {
        "path": str(path),
        "sha256": file.sha256,
        "num_prompts": wanted,
        "num_distinct_prompts": len(file.prompts),
        "num_bad_rows": file.num_bad_rows,
        "bad_row_reasons": dict(file.bad_row_reasons),
    }
    return Workload(list(islice(cycle(file.prompts), wanted)), facts)


def add_workload_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("workload")
    group.add_argument(
        "--dataset-path", required=True, metavar="FILE", help="prompts: JSON lines or a JSON document, .gz too"
    )
    group.add_argument(
        "--num-prompts",
        type=positive_int,
        metavar="N",
        help="send the first N usable prompts; a shorter file is repeated, with other seeds (default: all)",
    )
    group.add_argument("--max-new-tokens", type=positive_int, default=128, metavar="N", help="default: %(default)s")
    group.add_argument("--ignore-eos", action="store_true", help="fixed output length: do not stop at EOS")
    group.add_argument(
        "--temperature", type=non_negative, default=0.0, metavar="T", help="0 is greedy (default: %(default)s)"
    )
    group.add_argument(
        "--seed", type=non_negative_int, default=0, help="request i samples with seed + i (default: %(default)s)"
    )
    group.add_argument(
        "--chat-template",
        choices=("auto", "always", "never"),
        default="auto",
        help="auto: rows that are turns or messages go through the tokenizer's chat template (default: %(default)s)",
    )
    group.add_argument(
        "--num-warmups",
        type=non_negative_int,
        default=2,
        metavar="N",
        help="requests sent before each measurement and not counted (default: %(default)s)",
    )


def add_turn_flag(group: Any) -> None:
    group.add_argument(
        "--turn-seconds",
        type=non_negative,
        default=1.0,
        metavar="S",
        help="arms take turns of so long, each with KV of its own, so that an unsteady machine treats them alike; "
        "0: one after the other, where memory has room for one (default: %(default)s)",
    )


def concurrency_list(text: str) -> list[int]:
    """argparse type: "1,8,32" -> [1, 8, 32], distinct and in the given order."""
    levels = [positive_int(word) for word in text.split(",")]
    if len(set(levels)) < len(levels):
        raise argparse.ArgumentTypeError(f"names a concurrency twice: {text}")
    return levels


def positive_int(text: str) -> int:
    """argparse type."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def non_negative_int(text: str) -> int:
    """argparse type."""
    if not text.strip().isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 0, got {text!r}")
    return int(text)


def non_negative(text: str) -> float:
    """argparse type: a finite number of at least 0."""
    number = to_float(text)
    if not (math.isfinite(number) and number >= 0):
        raise argparse.ArgumentTypeError(f"must be a finite number of at least 0, got {text!r}")
    return number


def to_float(text: str) -> float:
    """argparse type: any number, "inf" included."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, got {text!r}") from None
