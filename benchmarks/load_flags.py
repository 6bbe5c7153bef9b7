"""The flags of a load test, named as in `vllm bench serve`. Reads the command line and nothing else."""

import argparse
import json
import math
from datetime import UTC, datetime
from typing import Any

from benchmarks import metrics
from benchmarks.workload import add_workload_flags, concurrency_list, to_float
from echo_sched.cli import Parser


def load_test_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="echo-sched bench load",
        description="Measure a running server: latencies, throughput and speculation, closed or open loop.",
        epilog="Example: echo-sched bench load --base-url http://127.0.0.1:8000 --dataset-path examples/prompts.jsonl "
        "--max-concurrency 1,8,32 --ignore-eos",
    )
    server = parser.add_argument_group("server")
    server.add_argument("--base-url", required=True, metavar="URL", help="for example http://127.0.0.1:8000")
    server.add_argument("--api-key", metavar="KEY", help="sent as a bearer token, never written to a file")
    server.add_argument(
        "--endpoint",
        choices=("generate", "completions"),
        default="generate",
        help="native /generate, or OpenAI's /v1/completions of any server (default: %(default)s)",
    )
    server.add_argument("--tokenizer", metavar="PATH", help="encodes the prompts (default: what the server reports)")
    server.add_argument(
        "--extra-body", type=_json_object, default={}, metavar="JSON", help="fields added to every request's body"
    )
    add_workload_flags(parser)
    _add_load_flags(parser.add_argument_group("load"))
    _add_report_flags(parser.add_argument_group("report"))
    return parser


def _add_load_flags(group: Any) -> None:
    group.add_argument(
        "--max-concurrency",
        type=concurrency_list,
        default=[None],
        metavar="N[,N...]",
        help="most requests open at once; a list makes one run of each (default: no bound)",
    )
    group.add_argument(
        "--request-rate",
        type=_positive,
        default=math.inf,
        metavar="R",
        help="mean requests per second; inf sends as soon as the concurrency allows (default: %(default)s)",
    )
    group.add_argument(
        "--burstiness",
        type=_positive,
        default=1.0,
        metavar="B",
        help="shape of the random gaps: 1 is Poisson, below 1 burstier, above 1 steadier (default: %(default)s)",
    )
    group.add_argument(
        "--trace",
        metavar="FILE",
        help="send at the times in this CSV file's TIMESTAMP column; a finite --request-rate rescales them",
    )


def _add_report_flags(group: Any) -> None:
    group.add_argument(
        "--goodput", nargs="+", default=[], metavar="NAME:MS", help="goals of a good request: ttft:MS tpot:MS e2el:MS"
    )
    group.add_argument(
        "--percentile-metrics",
        type=_latency_names,
        default=list(metrics.LATENCIES),
        metavar="NAMES",
        help="latencies to give percentiles of (default: ttft,tpot,itl,e2el)",
    )
    group.add_argument(
        "--metric-percentiles",
        type=_percentiles,
        default=list(metrics.DEFAULT_PERCENTILES),
        metavar="P[,P...]",
        help="percentiles to give (default: 90,95,99)",
    )
    output = group.add_mutually_exclusive_group()
    output.add_argument("--output", metavar="FILE", help="write the result here")
    output.add_argument(
        "--save-result",
        action="store_const",
        dest="output",
        const=f"load-test-{datetime.now(UTC):%Y%m%d-%H%M%S}.json",
        help="write the result to load-test-TIME.json in this folder",
    )
    group.add_argument(
        "--metadata", nargs="+", action=_Pairs, default={}, metavar="KEY=VALUE", help="facts to store with the result"
    )


class _Pairs(argparse.Action):
    """KEY=VALUE words -> a dict."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, _: Any = None
    ) -> None:
        pairs = [word.partition("=") for word in values]
        if not all(equals and key for key, equals, _ in pairs):
            parser.error("--metadata takes KEY=VALUE")
        setattr(namespace, self.dest, getattr(namespace, self.dest) | {key: value for key, _, value in pairs})


def _positive(text: str) -> float:
    number = to_float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"must be above 0, got {text!r}")
    return number


def _latency_names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := sorted(set(names) - set(metrics.LATENCIES)):
        raise argparse.ArgumentTypeError(f"knows {','.join(metrics.LATENCIES)}, not {','.join(unknown)}")
    return names


def _percentiles(text: str) -> list[float]:
    percentiles = [to_float(word) for word in text.split(",")]
    if not all(0 <= percentile <= 100 for percentile in percentiles):
        raise argparse.ArgumentTypeError(f"must lie between 0 and 100, got {text!r}")
    return percentiles


def _json_object(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text, parse_constant=_refuse_constant)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    return document


def _refuse_constant(name: str) -> None:
    """Python reads NaN and Infinity; JSON has neither."""
    raise ValueError(f"{name} is not a number")
