"""Runs the engine with ungated trees and keeps what the gate would have read, and what became of it.

Knows the loop and prompts; does not know what is fitted to the readings.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from echo_sched.errors import DataError
from echo_sched.prompts import ChatTemplate, Prompt, encode_prompt
from echo_sched.types import MAX_SEED, GateReading, NodeReading, Request, SamplingParams, StepRecord, TokenEvent


class Loop(Protocol):
    """The part of DecodeLoop that is used here."""

    @property
    def tokenizer(self) -> Any: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_model_len(self) -> int: ...

    @property
    def has_work(self) -> bool: ...

    @property
    def last_record(self) -> StepRecord | None: ...

    def add(self, request: Request) -> None: ...

    def step(self) -> list[TokenEvent]: ...


class Sample(NamedTuple):
    """The prompts that are run, and why others were not."""

    requests: tuple[Request, ...]
    num_skipped: int
    skip_reasons: dict[str, int]


class Trace(NamedTuple):
    """What the runs left behind."""

    readings: tuple[GateReading, ...]
    nodes: tuple[NodeReading, ...]
    num_steps: int
    num_output_tokens: int


def draw_sample(
    loop: Loop, prompts: Sequence[Prompt], params: SamplingParams, *, max_prompts: int, chat_template: ChatTemplate
) -> Sample:
    """At most `max_prompts` requests that fit the model, drawn in an order that `params.seed` decides.

    Drawn, not taken from the top: files of mixed traffic are often sorted by kind. Request i samples with seed
    `params.seed + i`, so that prompts do not share random numbers. Raises DataError when none is usable.
    """
    if chat_template == "always" and not loop.tokenizer.chat_template:
        raise DataError("--chat-template always: the model's tokenizer has no chat template")
    requests: list[Request] = []
    reasons: Counter[str] = Counter()
    for prompt in random.Random(params.seed).sample(prompts, len(prompts)):
        if len(requests) == max_prompts:
            break
        try:
            ids = encode_prompt(loop.tokenizer, prompt, chat_template)
        except DataError:
            reasons["refused by the chat template"] += 1
            continue
        obstacle = _obstacle(ids, params.max_new_tokens, loop)
        if obstacle is not None:
            reasons[obstacle] += 1
            continue
        seed = (params.seed + len(requests)) % (MAX_SEED + 1)
        requests.append(Request(f"row-{prompt.source_row}", tuple(ids), replace(params, seed=seed)))
    if not requests:
        counts = ", ".join(f"{reason}: {count}" for reason, count in reasons.most_common())
        raise DataError(f"no usable prompt among {reasons.total()}: {counts}")
    return Sample(tuple(requests), reasons.total(), dict(reasons))


def collect(loop: Loop, requests: Sequence[Request], *, concurrency: int, report: Callable[[int, int], None]) -> Trace:
    """Run all requests, at most `concurrency` at a time. `report(tokens done, tokens at most)` follows each step."""
    total = sum(request.params.max_new_tokens for request in requests)
    waiting = list(reversed(requests))
    readings: list[GateReading] = []
    nodes: list[NodeReading] = []
    running = num_steps = 0
    while waiting or loop.has_work:
        while waiting and running < concurrency:
            loop.add(waiting.pop())
            running += 1
        running -= sum(event.finish is not None for event in loop.step())
        record = loop.last_record
        assert record is not None, "a step has just run"
        num_steps += 1
        readings += record.gate_readings
        nodes += record.node_readings
        # a request that stopped early counts as done with all it might have emitted
        done = sum(
            len(request.output_ids) if request.finish is None else request.params.max_new_tokens for request in requests
        )
        report(done, total)
    return Trace(
        readings=tuple(readings),
        nodes=tuple(nodes),
        num_steps=num_steps,
        num_output_tokens=sum(len(request.output_ids) for request in requests),
    )


def _obstacle(ids: Sequence[int], max_new_tokens: int, loop: Loop) -> str | None:
    """Why a prompt cannot be run, or None."""
    if not ids:
        return "no tokens"
    if len(ids) + max_new_tokens > loop.max_model_len:
        return f"longer than {loop.max_model_len} tokens with the output"
    if max(ids) >= loop.vocab_size:
        return "tokens outside the model's vocabulary"
    return None
