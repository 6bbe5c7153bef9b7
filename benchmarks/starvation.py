"""Does a request that drafts poorly wait longer because others draft well? One of them among many, arm by arm.

    python -m benchmarks.starvation --dataset-path examples/prompts.jsonl --output starvation.json

The file's prompts are answered greedily; one more is answered at a temperature at which no drafter knows what comes.
Its gaps, the seconds between two steps that give it tokens, count while all requests decode. Arms are interleaved
within each repeat, and an arm's 95th percentile is divided by that of plain decoding in the same repeat.
"""

import argparse
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benchmarks.workload import Workload, non_negative, non_negative_int, positive_int, read_workload
from echo_sched.arms import REFERENCE, parse_arms
from echo_sched.cli import Parser, run
from echo_sched.errors import DataError
from echo_sched.flags import add_engine_flags, engine_config
from echo_sched.prompts import encode_prompt
from echo_sched.provenance import command_line, provenance
from echo_sched.report import check_output, finite, print_json, progress_bar, show_table, write_json
from echo_sched.types import Request, SamplingParams

if TYPE_CHECKING:
    from echo_sched.loop import DecodeLoop

OWN_FLAGS = ("policy", "max_batch_size", "seed")
HARD_PROMPT = "Words that have nothing to do with each other: lamp, treaty, seven, oblique, marmalade,"
HARD = "hard"


class Gaps(NamedTuple):
    """What the poorly drafting request saw in one trial, while all decoded."""

    seconds: tuple[float, ...]
    num_tokens: int
    tokens_per_second: float  # of everybody


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 with a document at --output."""
    args = _parser().parse_args(argv)
    check_output(args.output)
    base = engine_config(args, policy=REFERENCE, max_batch_size=args.num_easy + 1)
    arms = parse_arms(args.arms, base)
    workload = read_workload(args.dataset_path, args.num_easy)

    from echo_sched.loop import DecodeLoop  # loads torch: bad flags and files should answer at once

    widest = max(arm.config.k_max for arm in arms)
    drafting = next((arm.config for arm in arms if arm.config.policy != REFERENCE), base)
    loop = DecodeLoop.from_config(drafting.model_copy(update={"k_max": widest, "price": "on"}))
    easy = _easy_prompts(loop, workload, args.max_new_tokens)
    trials: dict[str, list[Gaps]] = {arm.name: [] for arm in arms}
    with progress_bar() as bar:
        task = bar.add_task("trials", total=args.repeats * len(arms))
        for repeat in range(args.repeats):
            first = repeat % len(arms)
            for arm in (*arms[first:], *arms[:first]):
                trials[arm.name].append(measure(loop.with_policy(arm.config), easy, args))
                bar.advance(task)
    document = {
        "arms": summarise(trials),
        "args": {name: finite(value) for name, value in vars(args).items()},
        "engine": loop.info(),
        "dataset": workload.facts,
        **provenance(command_line("python -m benchmarks.starvation", argv)),
    }
    write_json(args.output, document)
    show_table(
        f"gaps of one request that drafts poorly among {len(easy)}",
        ("arm", "p95, ms", "p95 ratio", "lowest", "highest", "mean ratio", "tokens per gap", "tokens/s"),
        [_row(name, cell) for name, cell in document["arms"].items()],
    )
    print_json(
        {"output": args.output, "p95_ratios": {n: c["p95_ratio"]["median"] for n, c in document["arms"].items()}}
    )
    return 0


def measure(loop: "DecodeLoop", easy: Sequence[tuple[int, ...]], args: argparse.Namespace) -> Gaps:
    """One trial: all requests at once, to the end. Raises DataError when they never all decode together."""
    greedy = SamplingParams(args.max_new_tokens, 0.0, ignore_eos=True)
    wild = SamplingParams(args.max_new_tokens, args.hard_temperature, seed=args.hard_seed, ignore_eos=True)
    hard = Request(HARD, tuple(loop.tokenizer(HARD_PROMPT)["input_ids"]), wild)
    for request in (*(Request(f"easy-{index}", ids, greedy) for index, ids in enumerate(easy)), hard):
        loop.add(request)
    gaps: list[float] = []
    num_hard, num_all, last = 0, 0, 0.0
    while loop.has_work:
        events = loop.step()
        now, record = time.perf_counter(), loop.last_record
        assert record is not None, "a step leaves a record"
        if record.num_decoding == len(easy) + 1 and last:
            gaps.append(now - last)
            num_all += record.num_emitted
            num_hard += sum(len(event.token_ids) for event in events if event.request is hard)
        last = now
    if len(gaps) < 2:
        raise DataError("the requests hardly ever decode together: more --max-new-tokens are needed")
    return Gaps(tuple(gaps), num_hard, num_all / sum(gaps))


def summarise(trials: dict[str, list[Gaps]]) -> dict[str, Any]:
    """By arm; ratios are to plain decoding in the same repeat."""
    plain = trials[REFERENCE]
    return {
        name: {
            "p95_seconds": _spread([_p95(trial) for trial in repeats]),
            "p95_ratio": _spread([_p95(mine) / _p95(off) for mine, off in zip(repeats, plain, strict=True)]),
            "mean_ratio": _spread(
                [float(np.mean(mine.seconds) / np.mean(off.seconds)) for mine, off in zip(repeats, plain, strict=True)]
            ),
            "tokens_per_gap": repeats[0].num_tokens / len(repeats[0].seconds),
            "tokens_per_second": _spread([trial.tokens_per_second for trial in repeats]),
            "num_gaps": [len(trial.seconds) for trial in repeats],
        }
        for name, repeats in trials.items()
    }


def _p95(trial: Gaps) -> float:
    return float(np.percentile(trial.seconds, 95))


def _spread(values: Sequence[float]) -> dict[str, Any]:
    return {"median": float(np.median(values)), "range": [float(min(values)), float(max(values))]}


def _easy_prompts(loop: "DecodeLoop", workload: Workload, max_new_tokens: int) -> list[tuple[int, ...]]:
    encoded = [tuple(encode_prompt(loop.tokenizer, prompt, "auto")) for prompt in workload.prompts]
    fitting = [ids for ids in encoded if 0 < len(ids) <= loop.max_model_len - max_new_tokens]
    if len(fitting) < len(encoded):
        raise DataError(f"{len(encoded) - len(fitting)} prompts do not fit into the context beside --max-new-tokens")
    return fitting


def _row(name: str, cell: dict[str, Any]) -> list[Any]:
    ratio = cell["p95_ratio"]
    return [
        name,
        1000 * cell["p95_seconds"]["median"],
        ratio["median"],
        *ratio["range"],
        cell["mean_ratio"]["median"],
        cell["tokens_per_gap"],
        cell["tokens_per_second"]["median"],
    ]


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "python -m benchmarks.starvation",
        description="Gaps between the tokens of one request that drafts poorly, among many that draft well.",
        epilog="Example: python -m benchmarks.starvation --dataset-path gsm8k.jsonl --arms off,echo,"
        "echo:max_step_stretch=0.05 --output starvation.json",
    )
    add = parser.add_argument
    add("--dataset-path", required=True, metavar="FILE", help="prompts of the requests that draft well")
    add("--arms", default="off,echo,echo:max_step_stretch=0.05", metavar="ARM[,ARM...]", help="default: %(default)s")
    add("--num-easy", type=positive_int, default=31, metavar="N", help="requests beside it (default: %(default)s)")
    add("--max-new-tokens", type=positive_int, default=96, metavar="N", help="default: %(default)s")
    add("--hard-temperature", type=non_negative, default=1.5, metavar="T", help="default: %(default)s")
    add("--hard-seed", type=non_negative_int, default=0, metavar="N", help="default: %(default)s")
    add("--repeats", type=positive_int, default=5, metavar="N", help="default: %(default)s")
    add("--output", required=True, metavar="FILE", help="JSON file to write")
    add_engine_flags(parser, exclude=OWN_FLAGS)
    return parser


if __name__ == "__main__":
    run(main)
