"""The default model, real weights and real text: exact where exactness is promised, explained where it is not."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from echo_sched.config import DEFAULT_MODEL, EngineConfig
from echo_sched.engine.reference import reference_decode
from echo_sched.fetch import resolve_model
from echo_sched.loop import DecodeLoop
from echo_sched.prompts import encode_prompt, load_prompts
from echo_sched.tree import Segment, pack
from echo_sched.types import Request, SamplingParams, StepRecord
from tests.conftest import REPOSITORY

NUMERICAL_MARGIN = 2e-3  # a float32 fork above this margin is a bug, not rounding
GREEDY = SamplingParams(max_new_tokens=32, temperature=0.0)
SAMPLED = SamplingParams(max_new_tokens=32, temperature=0.8, top_p=0.9, seed=5)
SETTINGS: dict[str, Any] = {
    "model": DEFAULT_MODEL,
    "drafter": "ngram",
    "price": "off",
    "max_batch_size": 4,
    "max_model_len": 512,
    "k_max": 32,
}


@pytest.fixture(scope="module")
def exact() -> DecodeLoop:
    return DecodeLoop.from_config(EngineConfig(**SETTINGS, dtype="bfloat16", numerics="exact"))


def example_requests(loop: DecodeLoop, count: int) -> list[Request]:
    """Every few of our own example prompts, greedy and sampled in turn."""
    prompts = load_prompts(REPOSITORY / "examples" / "prompts.jsonl").prompts
    chosen = prompts[:: len(prompts) // count][:count]
    return [
        Request(
            f"r{i}", tuple(encode_prompt(loop.tokenizer, prompt)), replace(SAMPLED, seed=i) if i % 4 == 3 else GREEDY
        )
        for i, prompt in enumerate(chosen)
    ]


def run(loop: DecodeLoop, requests: list[Request]) -> list[StepRecord]:
    for request in requests:
        loop.add(request)
    records = []
    while loop.has_work:
        loop.step()
        assert loop.last_record is not None
        records.append(loop.last_record)
    loop.check_integrity()
    return records


def test_exact_bfloat16_is_bit_for_bit_plain_decoding_and_every_mechanism_works(exact: DecodeLoop) -> None:
    """Plain decoding alone against echo and static in batches of four; echo uses all it has on the example prompts."""
    outputs, counted = {}, Counter[str]()
    for policy, batch in (("off", 1), ("echo", 4), ("static", 4)):
        loop = exact.with_policy(exact.config.model_copy(update={"policy": policy, "max_batch_size": batch}))
        requests = example_requests(loop, 10)
        records = run(loop, requests)
        outputs[policy] = [request.output_ids for request in requests]
        if policy == "echo":
            for record in records:
                counted["truncated"] += sum(record.truncated.values())
                counted["deepened"] += sum(record.deepened.values())
                counted["widened"] += record.num_widened
                counted["transferred"] += record.num_transferred
                counted["accepted"] += record.num_accepted
    assert outputs["echo"] == outputs["off"]
    assert outputs["static"] == outputs["off"]
    assert all(counted[name] for name in ("truncated", "deepened", "widened", "transferred", "accepted")), counted


def test_exact_rows_do_not_depend_on_what_is_packed_with_them(exact: DecodeLoop) -> None:
    """Logits and KV of trees and a prompt chunk, behind unequal contexts: bitwise the same together and alone."""
    target, kv = exact.target, exact.target.kv
    ids = [(7919 * i) % target.facts.vocab_size for i in range(1000)]
    segments = []
    for context, parents in ((300, [-1, 0, 0, 1, 2, 2]), (17, [-1]), (90, [-1, 0, 1, 2, 3]), (0, range(-1, 127))):
        slot = kv.allocate()
        for start in range(0, context, 128):
            chunk = ids[start : min(start + 128, context)]
            target.forward(pack([Segment(slot, start, chunk, range(-1, len(chunk) - 1), 1)]))
            kv.commit([(slot, range(len(chunk)))])
        segments.append(Segment(slot, context, ids[context : context + len(parents)], parents, len(parents)))
    together = pack(segments)
    logits = target.forward(together).split(np.diff(together.logit_start).tolist())
    written = [rows_of(exact, segment) for segment in segments]
    for segment, expected, stored in zip(segments, logits, written, strict=True):
        assert torch.equal(target.forward(pack([segment])), expected)
        assert torch.equal(rows_of(exact, segment), stored)
        kv.free(segment.slot)


def rows_of(loop: DecodeLoop, segment: Segment) -> torch.Tensor:
    """Keys and values that a segment's rows left behind the committed part, all layers."""
    kv = loop.target.kv
    views = [
        view[..., segment.base_len :, :].clone()
        for layer in range(kv.shape.num_layers)
        for view in kv.view(layer, segment.slot, segment.slot + 1, segment.base_len + len(segment.tokens))
    ]
    return torch.stack(views)


def test_exact_float32_is_bit_for_bit_plain_decoding() -> None:
    loop = DecodeLoop.from_config(EngineConfig(**SETTINGS, dtype="float32", numerics="exact"))
    outputs = []
    for policy in ("off", "echo"):
        requests = example_requests(loop, 4)
        run(loop.with_policy(loop.config.model_copy(update={"policy": policy})), requests)
        outputs.append([request.output_ids for request in requests])
    assert outputs[0] == outputs[1]


def test_fast_float32_differs_from_transformers_only_at_near_ties() -> None:
    """transformers' own decoding with its DynamicCache is the reference; a fork must be explained by its margin."""
    loop = DecodeLoop.from_config(EngineConfig(**SETTINGS, dtype="float32", numerics="fast"))
    requests = example_requests(loop, 4)
    run(loop, requests)
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(resolve_model(DEFAULT_MODEL), dtype="float32")
    forks = []
    for request in requests:
        expected = reference_decode(
            model, request.prompt_ids, request.params, sorted(loop.target.facts.eos_ids), use_cache=True
        )
        pairs = zip(request.output_ids, expected.output_ids, strict=False)
        fork = next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
        if fork is None:
            assert request.output_ids == expected.output_ids
        else:
            forks.append(expected.margins[fork])
    assert all(margin < NUMERICAL_MARGIN for margin in forks), forks
    assert len(forks) <= 1, forks
