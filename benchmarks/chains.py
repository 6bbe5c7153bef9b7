"""`echo-sched bench chains`: do two engines accept the same chains from the same draft head?

A running vLLM server and this engine answer the same prompts greedily, one at a time, with chains of one length. Where
both committed the same tokens, the share of chains accepted up to each position must agree: a head that is fed other
features or positions than it was trained with shows here at once.
"""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx

from benchmarks.report import check_output, finite, print_json, progress_bar, show_table, write_json
from benchmarks.scrape import ACCEPTED_PER_POSITION, DRAFTS, Counters, read_counters
from benchmarks.workload import add_workload_flags, positive_int, read_workload
from echo_sched.cli import Parser, run
from echo_sched.errors import DataError
from echo_sched.flags import add_engine_flags, engine_config
from echo_sched.prompts import encode_prompt
from echo_sched.provenance import command_line, provenance
from echo_sched.types import Request, SamplingParams

if TYPE_CHECKING:
    from echo_sched.loop import DecodeLoop

OWN_FLAGS = ("policy", "max_depth", "branching", "k_max", "max_batch_size")  # decided by --chain
TIMEOUT = 600.0  # seconds per answer


class Chains(NamedTuple):
    """One engine's answer to one prompt, and what became of its chains."""

    tokens: tuple[int, ...]
    num_chains: int
    num_reached: tuple[int, ...]  # [chain length] chains accepted up to each position


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0. Raises DataError when the server cannot be used."""
    args = _parser().parse_args(argv)
    check_output(args.output)
    chain = args.chain
    config = engine_config(args, policy="static", max_depth=chain, branching=1, k_max=chain, max_batch_size=1)
    workload = read_workload(args.dataset_path, args.num_prompts)

    from echo_sched.loop import DecodeLoop  # loads torch: bad flags and files should answer at once

    loop = DecodeLoop.from_config(config)
    pairs: list[tuple[Chains, Chains]] = []
    with httpx.Client(base_url=args.base_url, timeout=TIMEOUT) as client, progress_bar() as bar:
        task = bar.add_task("prompts", total=len(workload.prompts))
        for prompt in workload.prompts:
            ids = encode_prompt(loop.tokenizer, prompt, args.chat_template)
            if len(ids) + args.max_new_tokens + chain < loop.max_model_len:
                theirs = ask(client, args.served_model_name, ids, args.max_new_tokens, chain)
                pairs.append((theirs, decode(loop, ids, args.max_new_tokens, chain)))
            bar.advance(task)
    document = {
        **compare(pairs, chain),
        "args": {name: finite(value) for name, value in vars(args).items()},
        "engine": loop.info(),
        "dataset": workload.facts,
        **provenance(command_line("echo-sched bench chains", argv)),
    }
    write_json(args.output, document)
    rows = [[position + 1, *row.values()] for position, row in enumerate(document["positions"])]
    show_table("Chains accepted up to each position, on equal text", ["position", "theirs", "ours", "ratio"], rows)
    print_json({key: document[key] for key in ("num_prompts", "num_equal", "num_chains", "positions")})
    return 0


def ask(client: httpx.Client, model: str, ids: Sequence[int], num_tokens: int, chain: int) -> Chains:
    """One prompt to the server, between two readings of its counters. Nobody else may use it. Raises DataError."""
    body = {
        "model": model,
        "prompt": list(ids),
        "max_tokens": num_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    try:
        before = _counters(client)
        answer = client.post("/v1/completions", json=body).raise_for_status().json()
        after = _counters(client)
        tokens = tuple(answer["choices"][0]["token_ids"])
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{client.base_url}: {type(error).__name__}: {error}") from error
    positions = [(ACCEPTED_PER_POSITION, str(position)) for position in range(chain)]
    if not all(key in after for key in positions):
        raise DataError(f"{client.base_url} does not count acceptance for chains of {chain}; it must draft as many")
    gained = [round(after[key] - before.get(key, 0.0)) for key in ((DRAFTS, ""), *positions)]
    return Chains(tokens, gained[0], tuple(gained[1:]))


def decode(loop: "DecodeLoop", ids: Sequence[int], num_tokens: int, chain: int) -> Chains:
    """The same here. Chains that begin before `num_tokens` tokens are out count, whole, as the server counts them."""
    params = SamplingParams(num_tokens + chain + 1, temperature=0.0, ignore_eos=True)
    request = Request("chain", tuple(ids), params)
    loop.add(request)
    loop.step()
    while not request.output_ids:
        loop.step()
    lengths = []
    while len(request.output_ids) < num_tokens:
        num_before = request.stats.num_accepted
        loop.step()
        lengths.append(request.stats.num_accepted - num_before)
    tokens = tuple(request.output_ids[:num_tokens])
    loop.cancel(request.request_id)
    reached = tuple(sum(length > position for length in lengths) for position in range(chain))
    return Chains(tokens, len(lengths), reached)


def compare(pairs: Sequence[tuple[Chains, Chains]], chain: int) -> dict[str, Any]:
    """Acceptance by position over the prompts with equal tokens, (theirs, ours). Raises DataError if none are."""
    equal = [pair for pair in pairs if pair[0].tokens == pair[1].tokens]
    if not equal:
        raise DataError(f"the engines committed different tokens on all {len(pairs)} prompts: nothing to compare")
    num_chains = [sum(pair[side].num_chains for pair in equal) for side in (0, 1)]
    positions = []
    for position in range(chain):
        theirs, ours = (
            sum(pair[side].num_reached[position] for pair in equal) / max(num_chains[side], 1) for side in (0, 1)
        )
        positions.append({"theirs": theirs, "ours": ours, "ratio": ours / theirs if theirs else None})
    return {
        "num_prompts": len(pairs),
        "num_equal": len(equal),
        "num_chains": {"theirs": num_chains[0], "ours": num_chains[1]},
        "positions": positions,
        "prompts": [
            {"equal": theirs.tokens == ours.tokens, "theirs": theirs._asdict(), "ours": ours._asdict()}
            for theirs, ours in pairs
        ],
    }


def _counters(client: httpx.Client) -> Counters:
    return read_counters(client.get("/metrics").raise_for_status().text)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="echo-sched bench chains",
        description="Compare acceptance by position with a vLLM server that drafts with the same head.",
        epilog="Example, beside a server with --dtype float32 and --speculative-config "
        '\'{"method": "eagle3", "model": "HEAD", "num_speculative_tokens": 4}\': '
        "echo-sched bench chains --base-url http://127.0.0.1:8001 --served-model-name m --chain 4 --dtype float32 "
        "--drafter eagle3 --draft-model HEAD --dataset-path prompts.jsonl --output chains.json",
    )
    group = parser.add_argument_group("server")
    group.add_argument("--base-url", required=True, metavar="URL", help="a vLLM server that nobody else uses now")
    group.add_argument("--served-model-name", required=True, metavar="NAME", help="the model's name at the server")
    group.add_argument("--chain", type=positive_int, default=4, metavar="N", help="draft tokens (default: %(default)s)")
    group.add_argument("--output", required=True, metavar="FILE", help="JSON file to write")
    add_workload_flags(parser)
    add_engine_flags(parser, exclude=(*OWN_FLAGS, "seed"))
    return parser


if __name__ == "__main__":
    run(main)
