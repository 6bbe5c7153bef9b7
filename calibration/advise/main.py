"""`echo-sched advise`: which tree to draft for these prompts on this machine, or none, from measurement.

Progress and tables go to stderr, the document to --output, advice in words and one JSON line to stdout.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from calibration.advise.compare import Workload, run_arms, summarise
from calibration.advise.flags import parse
from calibration.advise.shapes import (
    LONGEST_CHAIN,
    MOST_CHILDREN,
    branched,
    chains,
    largest_budget,
    plain,
    pruning_arms,
    tree_arm,
)
from calibration.advise.tables import show
from calibration.advise.trial import run_trial
from calibration.advise.verdict import best_chain, judge, within
from calibration.collect import draw_sample
from echo_sched.arms import REFERENCE
from echo_sched.cli import run
from echo_sched.closed_loop import SharedEngine
from echo_sched.config import EngineConfig
from echo_sched.flags import engine_config
from echo_sched.prompts import PromptFile, load_prompts
from echo_sched.provenance import command_line, provenance
from echo_sched.report import print_json, progress_bar, write_json
from echo_sched.types import SamplingParams

if TYPE_CHECKING:
    from echo_sched.loop import DecodeLoop

TEMPERATURES = (0.0, 0.3, 0.7, 1.0)
COMMIT_LENGTHS = (1, 2, 3, 4, 6, 8)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0. Raises ConfigError, DataError, ModelError, ProfileError."""
    args = parse(argv)
    params = SamplingParams(args.max_new_tokens, args.temperature, seed=args.seed, ignore_eos=True)
    prompts = load_prompts(args.data)
    config = engine_config(
        args,
        {"max_batch_size": "concurrency"},
        policy="table",
        price="off",
        k_max_rule="fixed",
        k_max=largest_budget(args.concurrency),
        max_batch_size=max(args.concurrency),
        max_depth=LONGEST_CHAIN,
        branching=MOST_CHILDREN,
        seed=args.seed,
    )
    from echo_sched.loop import DecodeLoop  # loads torch: bad flags and files should answer at once

    loop = DecodeLoop.from_config(config, recording=True)
    workload = _workload(loop, prompts, params, args)
    with progress_bar() as bar:
        task = bar.add_task("trials", total=num_trials(args.concurrency, args.repeats))
        by_concurrency, chain = advised(
            loop, loop.config, workload, args.concurrency, args.latency_limit_ms, lambda: bar.advance(task)
        )
        document = {
            "concurrency": by_concurrency,
            "temperature": at_temperatures(loop, loop.config, workload, args.concurrency[0], chain),
            "commit": _commits(loop, args.concurrency),
            "engine": loop.info(),
            "args": vars(args),
            "provenance": provenance(command_line("echo-sched advise", argv)),
        }
    if args.output is not None:
        write_json(args.output, document)
    show(document)
    for level, found in by_concurrency.items():
        print(f"at concurrency {level}: {found['advice']['sentence']}")
    print_json({"output": args.output, "advice": {level: found["advice"] for level, found in by_concurrency.items()}})
    return 0


def advised(
    engine: SharedEngine,
    base: EngineConfig,
    workload: Workload,
    concurrencies: Sequence[int],
    limit_ms: float | None,
    on_trial: Callable[[], None] = lambda: None,
) -> tuple[dict[str, dict[str, Any]], str]:
    """By concurrency the arms' numbers and the advice, and the best chain at the first concurrency. JSON-able."""
    found: dict[str, dict[str, Any]] = {}
    first_chain = ""
    for level in concurrencies:
        lines = [plain(base), *(tree_arm(base, shape) for shape in chains())]
        chained = run_arms(engine, lines, workload, level, on_trial)
        chain = best_chain(chained, limit_ms)
        first_chain = first_chain or chain
        trees = [tree_arm(base, shape) for shape in branched(len(chain.split(".")))]
        pruning = pruning_arms(base, level)
        arms = [plain(base), tree_arm(base, tuple(map(int, chain.split(".")))), *trees, *pruning.values()]
        trials = run_arms(engine, arms, workload, level, on_trial)
        rows, verdict = summarise(trials), judge(chain, trials, [arm.name for arm in trees], limit_ms)
        found[str(level)] = {
            "off_within_limit": within(chained[REFERENCE], limit_ms),
            "chains": summarise(chained),
            "best_chain": chain,
            "trees": {name: row for name, row in rows.items() if not name.startswith("prune")},
            "pruning": {when: rows[arm.name] for when, arm in pruning.items()},
            "advice": verdict._asdict() | {"reasons": list(verdict.reasons)},
        }
    return found, first_chain


def at_temperatures(
    engine: SharedEngine, base: EngineConfig, workload: Workload, concurrency: int, chain: str
) -> dict[str, dict[str, Any]]:
    """The chain's counts at each temperature; one run each, since counts need no repeats."""
    arm = tree_arm(base, tuple(map(int, chain.split("."))))
    found = {}
    for temperature in TEMPERATURES:
        requests = workload.copies(f"temperature {temperature}", temperature=temperature)
        trial = run_trial(engine.with_policy(arm.config), requests, concurrency, siblings=True)
        found[f"{temperature:g}"] = {"tree": chain, **trial.counts.to_json()}
    return found


def num_trials(concurrencies: Sequence[int], num_repeats: int) -> int:
    """At most: short chains have fewer branched trees."""
    return len(concurrencies) * num_repeats * (1 + len(chains()) + 2 + len(branched(2)) + 4)


def _workload(loop: "DecodeLoop", prompts: PromptFile, params: SamplingParams, args: argparse.Namespace) -> Workload:
    sample = draw_sample(loop, prompts.prompts, params, max_prompts=args.num_prompts, chat_template=args.chat_template)
    return Workload(sample.requests, args.repeats)


def _commits(loop: "DecodeLoop", concurrencies: Sequence[int]) -> dict[str, Any]:
    from calibration.advise.commit import measure_commit

    kv, device = loop.target.kv, loop.target.device
    return {
        str(level): measure_commit(kv, device, num_requests=level, lengths=COMMIT_LENGTHS) for level in concurrencies
    }


if __name__ == "__main__":
    run(main)
