"""The command line of `echo-sched calibrate`. Knows flags and their ranges; starts nothing."""

import argparse
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from calibration.rule_flags import add_rule_flags
from echo_sched.cli import Parser
from echo_sched.errors import ConfigError
from echo_sched.flags import add_engine_flags
from echo_sched.prompts import ChatTemplate
from echo_sched.types import SamplingParams

# Settings that calibration decides itself: trees are ungated and nothing runs out of budget.
DECIDED = (
    "policy",
    "k_max",
    "k_max_rule",
    "price",
    "gate",
    "gate_scope",
    "thresholds",
    "transfer",
    "widen",
    "widen_scope",
    "explore",
    "adapt",
    "shapes",
    "node_floor",
    "max_step_stretch",
    "seed",
)
DEFAULT_COST_TOKENS = (1, 2, 3, 4, 6, 8, 9, 12, 16, 17, 24, 32, 33, 48, 64, 65, 96, 128, 129, 192, 256, 384)
DEFAULT_COST_CACHED = (256, 1024, 4096, 16384)

DESCRIPTION = """\
Measure how well the drafter's confidence predicts acceptance on your prompts, and write the profile that the scheduler
reads: the depths worth gating, their thresholds, and what a forward costs on this machine.

Trees are grown without a gate, so every depth is seen. A depth becomes a checkpoint when the lower end of the 95 %
interval of its AUC reaches --auc-cut (or, with --checkpoint-rule drop, that of the fall in acceptance --drop-cut); the
interval comes from resampling prompts. If no depth qualifies, the profile says so and why; none is invented.

Thresholds are fitted per load, K_max / batch size, to half of the prompts: replayed steps are to emit the most tokens
per second by this machine's costs. What they are worth on the other half is in the report, a page beside the
profile."""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parsed and range-checked arguments; `report` is set. Raises ConfigError naming the flag."""
    args = _parser().parse_args(argv)
    for name in ("max_prompts", "concurrency", "k_max"):
        if getattr(args, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(args, name)}")
    if args.cost_repeats < 0:
        raise ConfigError(f"--cost-repeats must not be negative, got {args.cost_repeats}")
    for name in ("auc_cut", "drop_cut"):
        if not (math.isfinite(getattr(args, name)) and 0.0 <= getattr(args, name) <= 1.0):
            raise ConfigError(f"--{name.replace('_', '-')} must be in [0, 1], got {getattr(args, name)}")
    (_check_costs_alone if args.cost_only else _check_calibration)(args)
    args.report = args.report or str(Path(args.out).with_suffix(".html"))
    if Path(args.report) == Path(args.out):
        raise ConfigError(f"--report and --out name the same file, {args.out}")
    for flag, path in (("--out", args.out), ("--trace", args.trace), ("--report", args.report)):
        if path is not None:
            _check_writable(flag, path)
    return args


def _check_costs_alone(args: argparse.Namespace) -> None:
    for name, value in (("DATA", args.data), ("--trace", args.trace), ("--report", args.report)):
        if value is not None:
            raise ConfigError(f"{name} does not go with --cost-only: no prompt is answered")
    if args.cost_repeats == 0:
        raise ConfigError("--cost-only times forwards: --cost-repeats must be at least 1")


def _check_calibration(args: argparse.Namespace) -> None:
    if args.data is None:
        raise ConfigError("DATA is missing: a file of prompts such as you will serve (or --cost-only)")
    if args.profile is not None:
        raise ConfigError("--profile goes with --cost-only: a calibration makes its profile anew")
    if args.threshold_rule == "throughput" and args.cost_repeats == 0:
        raise ConfigError(
            "--threshold-rule throughput needs costs: raise --cost-repeats or take --threshold-rule youden"
        )


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """How the prompts are answered. Raises RequestError naming the setting."""
    return SamplingParams(
        max_new_tokens=args.max_new_tokens,
        temperature=args.temperature,
        seed=args.seed,
        ignore_eos=args.ignore_eos,
    )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "echo-sched calibrate", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "data",
        nargs="?",
        metavar="DATA",
        help="file of prompts such as you will serve (JSON Lines or JSON, may be gzipped)",
    )
    add("--out", required=True, metavar="FILE", help="profile to write; an existing one is replaced when all is done")
    add(
        "--report",
        metavar="FILE.html",
        help="page of figures and tables to write, readable without a network (default: beside --out, ending in .html)",
    )
    add(
        "--cost-only",
        action="store_true",
        help="measure what forwards cost on this machine, about a minute, and put it into a profile that is otherwise "
        "--profile's or the one that ships; reads no prompts",
    )
    add(
        "--trace",
        metavar="FILE.jsonl.gz",
        help="also answer the prompts once more, and write what the drafter offers at every position of every answer: "
        "what `echo-sched simulate` reads",
    )
    add("--max-prompts", type=int, default=64, metavar="N", help="most prompts to run, drawn at random (default: 64)")
    add("--max-new-tokens", type=int, default=64, metavar="N", help="most tokens per answer (default: 64)")
    add("--ignore-eos", action="store_true", help="answers of a fixed length: do not stop at EOS")
    add("--concurrency", type=int, default=4, metavar="N", help="answers written at once (default: 4)")
    add("--temperature", type=float, default=0.0, metavar="X", help="as you will serve; 0 is greedy (default: 0)")
    add("--seed", type=int, default=0, metavar="N", help="decides the drawing, sampling and resampling (default: 0)")
    add(
        "--chat-template",
        choices=get_args(ChatTemplate),
        default="auto",
        help="auto: the model's template where a row is a chat; always: text rows too; never (default: auto)",
    )
    add_rule_flags(parser)
    _add_costs(parser)
    add_engine_flags(parser, exclude=DECIDED)
    return parser


def _add_costs(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--cost-tokens",
        type=ascending,
        default=DEFAULT_COST_TOKENS,
        metavar="N,N,...",
        help="packed rows whose forward is timed; go as far as your --k-max and batch (default: 1 to 384 in 22 steps)",
    )
    add(
        "--cost-cached",
        type=ascending,
        default=DEFAULT_COST_CACHED,
        metavar="C,C,...",
        help="tokens that all requests together have in their caches while that is timed, about 256 each (default: "
        f"{','.join(map(str, DEFAULT_COST_CACHED))})",
    )
    add("--cost-repeats", type=int, default=5, metavar="N", help="timings of each, 0: measure no cost (default: 5)")


def ascending(text: str) -> tuple[int, ...]:
    """Numbers of at least 1, separated by commas."""
    try:
        values = tuple(sorted({int(word) for word in text.split(",")}))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers separated by commas, got {text!r}") from None
    if values[0] < 1:
        raise argparse.ArgumentTypeError(f"every number must be at least 1, got {values[0]}")
    return values


def _check_writable(flag: str, out: str) -> None:
    """Long work is not begun when its result could not be written."""
    path = Path(out)
    if path.is_dir():
        raise ConfigError(f"{flag} {out} is a folder; name a file")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ConfigError(f"{flag} {out}: cannot write in folder {path.parent}: {error.strerror}") from error
