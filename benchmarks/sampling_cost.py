"""What sampling costs beside greedy decoding: seconds of a step, and of its accept phase, by what requests ask for.

    python -m benchmarks.sampling_cost --dataset-path examples/prompts.jsonl --output sampling.json

One full batch of the same prompts per arm, policy and repeat, interleaved, in this process, with a fixed number of
tokens. Only steps in which the whole batch decodes and no prompt is read are counted.
"""

import argparse
import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.sampling_arms import BASELINE, Fields, arms
from benchmarks.workload import non_negative_int, positive_int, read_workload
from echo_sched.arms import REFERENCE
from echo_sched.cli import Parser, run
from echo_sched.errors import ConfigError, DataError
from echo_sched.flags import add_engine_flags, engine_config
from echo_sched.prompts import encode_prompt
from echo_sched.provenance import command_line, provenance
from echo_sched.report import check_output, finite, print_json, progress_bar, show_table, write_json
from echo_sched.types import Request, StepRecord

if TYPE_CHECKING:
    from echo_sched.loop import DecodeLoop

OWN_FLAGS = ("policy", "max_batch_size", "seed")  # decided by --policies, --batch-size and this command's --seed
WARMUP_TOKENS = 4


class Steps(NamedTuple):
    """The counted steps of one trial, one entry per step."""

    seconds: list[float]  # of all phases
    accept_seconds: list[float]
    num_tokens: list[int]


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0."""
    args = _parser().parse_args(argv)
    check_output(args.output)
    settings = {"max_batch_size": args.batch_size, "seed": args.seed}
    configs = {
        name: engine_config(args, {"max_batch_size": "batch_size"}, policy=name, **settings) for name in args.policies
    }
    workload = read_workload(args.dataset_path, args.batch_size)

    from echo_sched.loop import DecodeLoop  # loads torch: bad flags and files should answer at once

    # One target serves all: a loop that drafts brings its drafter and the machine's costs with it.
    drafting = next((config for name, config in configs.items() if name != REFERENCE), configs[args.policies[0]])
    loop = DecodeLoop.from_config(drafting)
    prompts = [tuple(encode_prompt(loop.tokenizer, prompt, args.chat_template)) for prompt in workload.prompts]
    # All prompts go in one step, so that all answers run side by side from the first token to the last.
    whole = {"chunk_tokens": sum(map(len, prompts))}
    configs = {name: config.model_copy(update=whole) for name, config in configs.items()}
    longest = max(map(len, prompts))
    if longest + args.max_new_tokens > loop.max_model_len:
        raise DataError(
            f"{args.dataset_path}: a prompt of {longest} tokens leaves no room for {args.max_new_tokens} more"
        )
    known = {name: fields for name, fields in arms(loop.vocab_size).items() if args.arms is None or name in args.arms}
    if BASELINE not in known:
        raise ConfigError(f"--arms must name {BASELINE}, which all others are compared with")
    trials: dict[tuple[str, str], list[Steps]] = {(policy, arm): [] for policy in configs for arm in known}
    with progress_bar() as bar:
        task = bar.add_task("trials", total=len(trials) * args.repeats)
        for policy in configs:
            run_trial(loop.with_policy(configs[policy]), prompts, known[BASELINE], WARMUP_TOKENS, args.seed)
        for policy, arm in _order(list(configs), list(known), args.repeats):
            current = loop.with_policy(configs[policy])
            trials[policy, arm].append(run_trial(current, prompts, known[arm], args.max_new_tokens, args.seed))
            bar.advance(task)
    document = {
        "policies": {
            policy: {arm: summary(trials[policy, arm], trials[policy, BASELINE]) for arm in known} for policy in configs
        },
        "args": {name: finite(value) for name, value in vars(args).items()},
        "engine": loop.info(),
        "dataset": workload.facts,
        **provenance(command_line("python -m benchmarks.sampling_cost", argv)),
    }
    write_json(args.output, document)
    show(document["policies"])
    print_json({"output": args.output})
    return 0


def run_trial(
    loop: "DecodeLoop", prompts: Sequence[tuple[int, ...]], fields: Fields, num_tokens: int, seed: int
) -> Steps:
    """All prompts at once, `num_tokens` each; request i samples with seed + i."""
    for index, prompt in enumerate(prompts):
        params = replace(fields.params, max_new_tokens=num_tokens, seed=seed + index, ignore_eos=True)
        loop.add(Request(str(index), prompt, params, logprobs=fields.logprobs))
    records = []
    while loop.has_work:
        loop.step()
        assert loop.last_record is not None, "a step leaves a record"
        records.append(loop.last_record)
    return steps_of(records, len(prompts))


def steps_of(records: Sequence[StepRecord], batch_size: int) -> Steps:
    """The steps in which all decode."""
    full = [record for record in records if record.num_decoding == batch_size and record.num_prompt_tokens == 0]
    return Steps(
        [sum(record.seconds.values()) for record in full],
        [record.seconds["accept"] for record in full],
        [record.num_emitted for record in full],
    )


def summary(repeats: Sequence[Steps], baseline: Sequence[Steps]) -> dict[str, Any]:
    """Medians over the steps of each repeat, then over repeats with their range; ratios are paired by repeat."""
    steps = [statistics.median(trial.seconds) for trial in repeats]
    accepts = [statistics.median(trial.accept_seconds) for trial in repeats]
    ratios = [step / statistics.median(other.seconds) for step, other in zip(steps, baseline, strict=True)]
    per_step = [statistics.fmean(trial.num_tokens) for trial in repeats]
    return {
        "num_steps": len(repeats[0].seconds),
        "tokens_per_step": per_step[0],
        "step_seconds": _spread(steps),
        "accept_seconds": _spread(accepts),
        "accept_share": _spread([accept / step for accept, step in zip(accepts, steps, strict=True)]),
        f"step_over_{BASELINE}": _spread(ratios),
    }


def show(policies: dict[str, Any]) -> None:
    rows = [
        [
            policy,
            arm,
            cell["tokens_per_step"],
            *(1000 * cell["step_seconds"][key] for key in ("median", "low", "high")),
            *(1000 * cell["accept_seconds"][key] for key in ("median", "low", "high")),
            cell["accept_share"]["median"],
            cell[f"step_over_{BASELINE}"]["median"],
        ]
        for policy, cells in policies.items()
        for arm, cell in cells.items()
    ]
    columns = ["policy", "arm", "tokens/step", "step ms", "low", "high", "accept ms", "low", "high", "share"]
    show_table("What sampling costs (medians over repeats, and their range)", [*columns, f"step/{BASELINE}"], rows)


def _order(policies: list[str], names: list[str], repeats: int) -> Iterator[tuple[str, str]]:
    """Machines drift: arms follow each other closely and take turns at being first."""
    for repeat, policy in itertools.product(range(repeats), policies):
        first = repeat % len(names)
        for arm in (*names[first:], *names[:first]):
            yield policy, arm


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m benchmarks.sampling_cost",
        description="Time decode steps, and their accept phase, by what requests ask of sampling.",
        epilog="Example: python -m benchmarks.sampling_cost --dataset-path examples/prompts.jsonl --output cost.json",
    )
    group = parser.add_argument_group("measurement")
    group.add_argument("--dataset-path", required=True, metavar="FILE", help="prompts, any common layout, .gz too")
    group.add_argument("--output", required=True, metavar="FILE", help="JSON file to write")
    group.add_argument(
        "--policies",
        type=lambda text: text.split(","),
        default=[REFERENCE, "echo"],
        metavar="NAME[,NAME...]",
        help="scheduling policies to decode with (default: off,echo)",
    )
    group.add_argument(
        "--arms",
        type=lambda text: text.split(","),
        metavar="NAME[,NAME...]",
        help=f"arms to run, {BASELINE} among them: {', '.join(arms(1))} (default: all)",
    )
    group.add_argument(
        "--batch-size", type=positive_int, default=32, metavar="N", help="requests (default: %(default)s)"
    )
    group.add_argument("--max-new-tokens", type=positive_int, default=32, metavar="N", help="default: %(default)s")
    group.add_argument("--repeats", type=positive_int, default=3, metavar="N", help="default: %(default)s")
    group.add_argument("--seed", type=non_negative_int, default=0, help="request i samples with seed + i")
    group.add_argument("--chat-template", choices=("auto", "always", "never"), default="auto", help="default: auto")
    add_engine_flags(parser, exclude=OWN_FLAGS)
    return parser


if __name__ == "__main__":
    run(main)
