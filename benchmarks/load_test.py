"""`echo-sched bench load`: measures a running server over HTTP, with the flags and numbers of `vllm bench serve`.

Closed loop: keep a given number of requests open (`--max-concurrency`, one or a list). Open loop: send at given times,
random (`--request-rate`, `--burstiness`) or recorded (`--trace`). Imports nothing of the server it measures.
"""

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import httpx

from benchmarks import metrics
from benchmarks.arrivals import random_arrivals, trace_arrivals
from benchmarks.client import ServerFacts, drive, open_client, read_server_facts, scrape
from benchmarks.dialects import Completions, Dialect, Generation, Native
from benchmarks.load_flags import load_test_parser
from benchmarks.scrape import speculation_between
from benchmarks.tokens import encode_all
from benchmarks.workload import read_workload
from echo_sched.cli import run
from echo_sched.errors import ConfigError
from echo_sched.provenance import command_line, provenance
from echo_sched.report import check_output, console, finite, print_json, progress_bar, show_table, write_json
from echo_sched.tree import FloatArray

TABLE_COLUMNS = {
    "concurrency": "max_concurrency",
    "done": "completed",
    "tokens/s": "output_throughput",
    "TTFT ms": "median_ttft_ms",
    "TPOT ms": "median_tpot_ms",
    "ITL ms": "median_itl_ms",
    "E2E ms": "median_e2el_ms",
    "acceptance length": "spec_decode_acceptance_length",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 when every request of every run completed, else 1."""
    args = load_test_parser().parse_args(argv)
    goals = metrics.parse_goals(args.goodput)
    if args.output:
        check_output(args.output)
    document = asyncio.run(_load_test(args, goals))
    document |= provenance(command_line("echo-sched bench load", argv))
    if args.output:
        write_json(args.output, document)
    runs = document["runs"]
    rows = [[one_run[key] for key in TABLE_COLUMNS.values()] for one_run in runs]
    show_table(f"Load test of {args.base_url}", list(TABLE_COLUMNS), rows)
    reasons = sum((Counter(one_run["failure_reasons"]) for one_run in runs), Counter[str]())
    for reason, count in reasons.most_common():
        console.print(f"{count} not completed: {reason}", style="red", markup=False, soft_wrap=True)
    print_json(document)
    return 0 if all(one_run["completed"] == one_run["num_prompts"] for one_run in runs) else 1


async def _load_test(args: argparse.Namespace, goals: dict[str, float]) -> dict[str, Any]:
    """All runs, one per concurrency, and the facts of what was asked of whom."""
    workload = read_workload(args.dataset_path, args.num_prompts)
    arrivals = _arrivals(args, len(workload.prompts))
    async with open_client(args.base_url, args.api_key) as client:
        facts = await read_server_facts(client)
        tokenizer = args.tokenizer or facts.model_path
        prompts = encode_all(workload.prompts, tokenizer, args.chat_template, explicit=args.tokenizer is not None)
        dialect = _dialect(args.endpoint, facts)
        generation = Generation(args.max_new_tokens, args.temperature, args.ignore_eos, args.seed, args.extra_body)
        bodies = [dialect.body(index, prompt, generation) for index, prompt in enumerate(prompts)]
        runs = [await _one_run(client, dialect, bodies, arrivals, level, args, goals) for level in args.max_concurrency]
    return {
        # With one run its numbers are also at the top, where a reader of a single result file looks for them.
        **(runs[0] if len(runs) == 1 else {}),
        "runs": runs,
        "args": {name: finite(value) for name, value in vars(args).items() if name != "api_key"},
        "model": facts.model_name or facts.model_path,
        "tokenizer": tokenizer,
        "server": facts.info,
        "dataset": workload.facts,
        "metadata": args.metadata,
    }


async def _one_run(
    client: httpx.AsyncClient,
    dialect: Dialect,
    bodies: list[dict[str, Any]],
    arrivals: FloatArray,
    max_concurrency: int | None,
    args: argparse.Namespace,
    goals: dict[str, float],
) -> dict[str, Any]:
    """Warm up, then measure. Only the measured part is between the two readings of the server's counters."""
    warmups = [bodies[index % len(bodies)] for index in range(args.num_warmups)]
    if warmups:
        await drive(client, dialect, warmups, [0.0] * len(warmups), max_concurrency, lambda: None)
    before = await scrape(client)
    with progress_bar() as bar:
        task = bar.add_task(f"concurrency {max_concurrency or 'unbounded'}", total=len(bodies))
        start = time.perf_counter()
        outcomes = await drive(client, dialect, bodies, arrivals.tolist(), max_concurrency, lambda: bar.advance(task))
        duration = time.perf_counter() - start
    after = await scrape(client)
    return {
        "max_concurrency": max_concurrency,
        "num_prompts": len(bodies),
        "request_rate": finite(args.request_rate),
        "burstiness": args.burstiness,
        **metrics.summarise(outcomes, duration, goals, args.metric_percentiles, args.percentile_metrics),
        **speculation_between(before, after),
    }


def _arrivals(args: argparse.Namespace, num_requests: int) -> FloatArray:
    if args.trace:
        return trace_arrivals(args.trace, num_requests, args.request_rate)
    return random_arrivals(num_requests, args.request_rate, args.burstiness, args.seed)


def _dialect(endpoint: str, facts: ServerFacts) -> Dialect:
    if endpoint == "generate":
        return Native()
    if facts.model_name is None:
        raise ConfigError("the server lists no model under /v1/models, which --endpoint completions needs")
    return Completions(facts.model_name)


if __name__ == "__main__":
    run(main)
