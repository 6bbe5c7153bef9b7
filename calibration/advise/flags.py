"""The command line of `echo-sched advise`. Knows flags and their ranges; starts nothing."""

import argparse
import math
from collections.abc import Sequence
from typing import get_args

from calibration.flags import ascending
from echo_sched.cli import Parser
from echo_sched.config import EngineConfig
from echo_sched.errors import ConfigError
from echo_sched.flags import add_engine_flags
from echo_sched.prompts import ChatTemplate
from echo_sched.report import check_output

# Settings that are not the arms' own: which model, which drafter, how they are run.
SETTINGS = (
    "model", "drafter", "draft_model", "draft_aux_layers", "profile", "dtype", "numerics", "device", "max_model_len",
    "kv_memory", "chunk_tokens",
)  # fmt: skip

DESCRIPTION = """\
Measure which tree is worth drafting on this machine for your prompts. First a single chain, 1 to 8 tokens long, until a
longer one brings nothing; then the best chain with branches. Each is run against plain decoding on the same prompts, at
the same concurrency and under the same latency limit, in turn and repeatedly. Branches that do not surely pay are
advised against: "keep the chain".

Also shown: what moving an accepted path costs, acceptance at temperatures 0, 0.3, 0.7 and 1, and what pruning brings
while drafting, before verifying, at both places and at neither. Nothing has a price here: all is drafted that an arm
says. Run it on a quiet machine; seconds are medians with their range, counts are exact."""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Raises ConfigError naming the flag."""
    args = _parser().parse_args(argv)
    for name in ("num_prompts", "max_new_tokens", "repeats"):
        if getattr(args, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(args, name)}")
    limit = args.latency_limit_ms
    if limit is not None and not (math.isfinite(limit) and limit > 0):
        raise ConfigError(f"--latency-limit-ms must be above 0, got {limit}")
    if args.output is not None:
        check_output(args.output)
    return args


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "echo-sched advise",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Example: echo-sched advise prompts.jsonl --concurrency 1,8 --latency-limit-ms 200 --output advice.json",
    )
    add = parser.add_argument
    add("data", metavar="DATA", help="file of prompts such as you will serve (JSON Lines or JSON, may be gzipped)")
    add("--concurrency", type=ascending, default=(1, 8), metavar="N[,N...]", help="requests at once (default: 1,8)")
    add(
        "--latency-limit-ms",
        type=float,
        metavar="X",
        help="most milliseconds between two outputs of a request, 95th percentile; slower arms are not advised",
    )
    add("--num-prompts", type=int, default=16, metavar="N", help="prompts, drawn at random (default: 16)")
    add("--max-new-tokens", type=int, default=64, metavar="N", help="tokens per answer, EOS ignored (default: 64)")
    add("--repeats", type=int, default=3, metavar="N", help="times every arm runs (default: 3)")
    add("--temperature", type=float, default=0.0, metavar="X", help="as you will serve; 0 is greedy (default: 0)")
    add("--seed", type=int, default=0, metavar="N", help="decides the drawing and sampling (default: 0)")
    add(
        "--chat-template",
        choices=get_args(ChatTemplate),
        default="auto",
        help="auto: the model's template where a row is a chat; always: text rows too; never (default: auto)",
    )
    add("--output", metavar="FILE", help="JSON file to write")
    add_engine_flags(parser, exclude=[name for name in EngineConfig.model_fields if name not in SETTINGS])
    return parser
