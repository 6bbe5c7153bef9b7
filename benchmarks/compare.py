"""`echo-sched bench compare`: scheduling policies against plain decoding, on the same prompts, seeds and weights.

A study given on the command line and summed up at once (the declared ones, kept trial by trial: benchmarks/study).
Closed loop, in process, no HTTP. Arms take turns within each repeat, and every arm's tokens are checked against
those of the arm `off`: speculation may change how fast an answer comes, never what it says. How good the drafts were is
counted on the way.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks.comparison import check_exactness, plan_of, run_trials, summarise
from benchmarks.reliability_plot import reliability_svg
from benchmarks.shared_engine import encode_fitting, margin, open_engine
from benchmarks.tables import show_comparison
from benchmarks.workload import add_turn_flag, add_workload_flags, concurrency_list, positive_int, read_workload
from echo_sched.arms import REFERENCE, Arm, parse_arms, settings_of
from echo_sched.cli import Parser, run
from echo_sched.errors import ConfigError
from echo_sched.flags import add_engine_flags, engine_config
from echo_sched.plots import save_text
from echo_sched.provenance import command_line, provenance
from echo_sched.report import check_output, finite, print_json, progress_bar, write_json
from echo_sched.types import SamplingParams

OWN_FLAGS = ("policy", "max_batch_size", "seed")  # decided by --arms, --concurrency and the workload's --seed


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0, or 1 when numerics are exact and any tokens differ from plain decoding's."""
    args = _parser().parse_args(argv)
    check_output(args.output)
    most = max(args.concurrency)
    base = engine_config(args, {"max_batch_size": "concurrency"}, policy=REFERENCE, max_batch_size=most, seed=args.seed)
    arms = parse_arms(args.arms, base)
    if args.reliability:
        _check_plot(args.reliability, arms)
    workload = read_workload(args.dataset_path, args.num_prompts)

    loop = open_engine(arms, base, recording=True)
    params = SamplingParams(args.max_new_tokens, args.temperature, seed=args.seed, ignore_eos=args.ignore_eos)
    encoded = encode_fitting(loop, workload.prompts, args.max_new_tokens, args.chat_template, args.dataset_path)
    prompts = [ids for ids in encoded if ids is not None]
    plan = plan_of(arms, args.concurrency, prompts, params, args.repeats, args.num_warmups, args.turn_seconds)
    with progress_bar() as bar:
        task = bar.add_task("requests", total=plan.num_requests)
        trials = run_trials(loop, plan, lambda: bar.advance(task))
        bar.update(task, description="checking tokens")
        exactness = check_exactness(trials, plan, partial(margin, loop))
    document = {
        **summarise(trials),
        "settings": settings_of(arms),
        "exactness": {"numerics": base.numerics, **exactness},
        "args": {name: finite(value) for name, value in vars(args).items()},
        "engine": loop.info(),
        "dataset": workload.facts | {"num_too_long": len(workload.prompts) - len(prompts)},
        **provenance(command_line("echo-sched bench compare", argv)),
    }
    write_json(args.output, document)
    if args.reliability:
        save_text(args.reliability, reliability_svg(document["arms"]))
    show_comparison(document)
    print_json(_headline(args.output, document))
    return 1 if base.numerics == "exact" and not exactness["equal"] else 0


def _check_plot(path: str, arms: Sequence[Arm]) -> None:
    check_output(path, "--reliability")
    if all(arm.name == REFERENCE for arm in arms):
        raise ConfigError(f"--reliability needs an arm that drafts beside {REFERENCE}")


def _headline(path: str, document: dict[str, Any]) -> dict[str, Any]:
    ratios = {
        arm: {concurrency: cell["median"] for concurrency, cell in cells.items()}
        for arm, cells in document["ratios"].items()
    }
    exactness = document["exactness"]
    shares = {
        arm: {concurrency: cell["share_equal"] for concurrency, cell in cells.items()}
        for arm, cells in exactness["arms"].items()
    }
    return {
        "output": path,
        "ratios": ratios,
        "numerics": exactness["numerics"],
        "equal": exactness["equal"],
        "share_equal": shares,
        "control_share_equal": exactness["control"] and exactness["control"]["share_equal"],
    }


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="echo-sched bench compare",
        description="Compare scheduling policies with plain decoding, in process, and check that all say the same.",
        epilog="Example: echo-sched bench compare --dataset-path examples/prompts.jsonl --arms off,static,echo "
        "--concurrency 1,8,32 --num-prompts 32 --max-new-tokens 64 --ignore-eos --output comparison.json",
    )
    comparison = parser.add_argument_group("comparison")
    comparison.add_argument(
        "--arms",
        default="off,static,echo",
        metavar="ARM[,ARM...]",
        help="policies, with settings of their own after colons, as in echo:gate=none:widen=off or "
        "dynamic:max_depth=6:branching=10:k_max=64; "
        "off is always among them (default: %(default)s)",
    )
    comparison.add_argument(
        "--concurrency",
        type=concurrency_list,
        default=[1, 8, 32],
        metavar="N[,N...]",
        help="requests running at once (default: 1,8,32)",
    )
    comparison.add_argument(
        "--repeats", type=positive_int, default=1, metavar="N", help="times everything runs (default: %(default)s)"
    )
    add_turn_flag(comparison)
    comparison.add_argument("--output", required=True, metavar="FILE", help="JSON file to write")
    comparison.add_argument(
        "--reliability",
        metavar="FILE.svg",
        help="plot to write: how many draft nodes were accepted against their path probability, one panel per arm",
    )
    add_workload_flags(parser)
    add_engine_flags(parser, exclude=OWN_FLAGS)
    return parser


if __name__ == "__main__":
    run(main)
