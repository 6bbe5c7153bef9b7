"""The command line of `echo-sched train-draft`. Knows flags and their ranges; starts nothing."""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from echo_sched.cli import Parser
from echo_sched.config import EngineConfig
from echo_sched.errors import ConfigError
from echo_sched.flags import add_engine_flags, flag_of
from echo_sched.prompts import ChatTemplate

ENGINE_FLAGS = ("model", "dtype", "device", "max_batch_size", "max_model_len", "kv_memory")

DESCRIPTION = """\
Train an EAGLE-3 draft head for a model from the model's own answers, and write it in the layout that echo-sched, vLLM
and SGLang load.

DATA is a file of prompts (the model answers them first: 70 % greedily, 30 % at temperature 0.8), or a generations file
that has the model's answers already: JSON Lines with `prompt` or `messages` and `response_ids` or `response`.

OUT gets config.json, model.safetensors (the head with the best held-out accuracy so far), README.md, curve.svg and
curve.jsonl; OUT/training keeps what --resume continues from and the answers, and may be deleted afterwards.
Training ends after --epochs passes, after --max-minutes, or when two passes gain less than 0.2 points of held-out
first-step accuracy."""

AT_LEAST_ONE = (
    "draft_vocab",
    "intermediate_size",
    "unroll",
    "batch_tokens",
    "epochs",
    "eval_every",
    "checkpoint_every",
    "max_new_tokens",
    "max_prompts",
    "max_held_out",
)
POSITIVE = ("learning_rate", "max_minutes")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parsed and range-checked arguments. Raises ConfigError naming the flag."""
    args = _parser().parse_args(argv)
    for name in AT_LEAST_ONE:
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ConfigError(f"{flag_of(name)} must be at least 1, got {value}")
    for name in POSITIVE:
        value = getattr(args, name)
        if value is not None and not (math.isfinite(value) and value > 0.0):
            raise ConfigError(f"{flag_of(name)} must be a positive number, got {value}")
    if not 0.0 < args.held_out < 1.0:
        raise ConfigError(f"--held-out must be between 0 and 1, got {args.held_out}")
    if args.seed < 0:
        raise ConfigError(f"--seed must not be negative, got {args.seed}")
    return args


def claim_folder(out: str, *, resume: bool) -> Path:
    """The output folder, made if need be. Raises ConfigError when it cannot be used or holds another run."""
    folder = Path(out)
    state = state_file(folder)
    if state.exists() and not resume:
        raise ConfigError(f"--out {out} holds a training run; continue it with --resume or name another folder")
    if resume and not folder.is_dir():
        raise ConfigError(f"--resume: there is no run at {out}")
    try:
        state.parent.mkdir(parents=True, exist_ok=True)
        (state.parent / "writable").touch()
        (state.parent / "writable").unlink()
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot write there: {error.strerror}") from error
    return folder


def state_file(folder: Path) -> Path:
    return folder / "training" / "state.pt"


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "echo-sched train-draft", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("data", metavar="DATA", help="prompts or generations (JSON Lines or JSON, may be gzipped)")
    add("--out", required=True, metavar="DIR", help="folder for the head; must not hold another run")
    add("--resume", action="store_true", help="continue the run in --out; budget flags may have changed")
    _add_data_flags(parser.add_argument_group("data"))
    _add_head_flags(parser.add_argument_group("head"))
    _add_training_flags(parser.add_argument_group("training"))
    add_engine_flags(parser, exclude=set(EngineConfig.model_fields) - set(ENGINE_FLAGS))
    return parser


def _add_data_flags(group: "argparse._ArgumentGroup") -> None:
    add = group.add_argument
    add(
        "--chat-template",
        choices=get_args(ChatTemplate),
        default="auto",
        help="auto: prompts as chats where the model has a template, text rows too; always; never (default: auto)",
    )
    add("--max-prompts", type=int, metavar="N", help="use at most so many prompts, drawn at random (default: all)")
    add("--max-new-tokens", type=int, default=176, metavar="N", help="most tokens per answer (default: 176)")
    add("--held-out", type=float, default=0.04, metavar="X", help="share of prompts never trained on (default: 0.04)")
    add("--max-held-out", type=int, default=256, metavar="N", help="about the most prompts held out (default: 256)")
    add(
        "--cache-features",
        metavar="DIR",
        help="keep the model's hidden states there, so that only the first pass computes them: the model costs more "
        "than the head (hidden size 576: 4.6 kB per token; default: computed anew in each pass)",
    )


def _add_head_flags(group: "argparse._ArgumentGroup") -> None:
    add = group.add_argument
    add("--draft-vocab", type=int, default=8192, metavar="N", help="tokens the head can draft (default: 8192)")
    add("--intermediate-size", type=int, metavar="N", help="width of the head's MLP (default: the model's)")
    add(
        "--aux-layers",
        type=_layers,
        metavar="I,J,K",
        help="hidden states the head reads, 0: embeddings, i: after layer i (default: 2, n/2, n-3)",
    )


def _add_training_flags(group: "argparse._ArgumentGroup") -> None:
    add = group.add_argument
    add("--unroll", type=int, default=3, metavar="N", help="steps of training-time test (default: 3)")
    add("--epochs", type=int, default=8, metavar="N", help="most passes over the data (default: 8)")
    add("--max-minutes", type=float, metavar="X", help="most minutes, earlier parts of the run included")
    add("--batch-tokens", type=int, default=1024, metavar="N", help="tokens per optimizer step (default: 1024)")
    add(
        "--compute-dtype",
        choices=("auto", "float32", "bfloat16"),
        default="auto",
        help="of the head's matrix products; weights and losses stay float32 (default: bfloat16 where the device has "
        "units for it, which halves the time there)",
    )
    add("--learning-rate", type=float, default=1e-3, metavar="X", help="at its peak (default: 0.001)")
    add("--eval-every", type=int, metavar="N", help="steps between held-out evaluations (default: once per pass)")
    add("--checkpoint-every", type=int, default=50, metavar="N", help="steps between saved states (default: 50)")
    add("--seed", type=int, default=0, metavar="N", help="decides first weights, order and sampling (default: 0)")


def _layers(text: str) -> tuple[int, ...]:
    try:
        layers = tuple(int(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers separated by commas, got {text!r}") from None
    return layers
