"""Decode loops over tiny models, the requests that exercise them, and what plain decoding says about those requests."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from transformers import PreTrainedModel

from echo_sched.config import EngineConfig
from echo_sched.engine.accept import Sampler
from echo_sched.engine.attention import ATTENTION_NAME
from echo_sched.engine.draft import Drafter
from echo_sched.engine.forward import Target
from echo_sched.engine.kernels import Numerics
from echo_sched.engine.kv import KVCache, slot_len
from echo_sched.engine.models import kv_shape, model_facts, use_own_attention
from echo_sched.engine.probe import plain_logits, probe
from echo_sched.engine.reference import ReferenceResult, reference_decode
from echo_sched.engine.sampling import sample
from echo_sched.loop import DecodeLoop
from echo_sched.loop.assembly import policy_settings
from echo_sched.scheduler.policy import make_policy
from echo_sched.scheduler.profile import BUILT_IN_PROFILES
from echo_sched.types import Request, SamplingParams
from tests.tiny_models import decode, random_prompt, tiny_model

EOS_ID = 7
TAIL_LEN = 200  # the largest K_max of a test
CPU = torch.device("cpu")


class TinyTokenizer:
    """The one thing a loop asks of a tokenizer."""

    def decode(self, ids: Sequence[int], **_: object) -> str:
        return decode(ids)


def tiny_target(
    family: str = "llama",
    *,
    dtype: torch.dtype = torch.float64,
    numerics: Numerics = "fast",
    num_slots: int = 4,
    max_model_len: int = 200,
    device: torch.device = CPU,
    tokenizer: object | None = None,
) -> Target:
    model = tiny_model(family, dtype).to(device)
    return target_of(model, numerics=numerics, num_slots=num_slots, max_model_len=max_model_len, tokenizer=tokenizer)


def target_of(
    model: PreTrainedModel,
    *,
    numerics: Numerics = "fast",
    num_slots: int = 4,
    max_model_len: int = 200,
    tokenizer: object | None = None,
) -> Target:
    """A target around a model that is its own from now on."""
    model.set_attn_implementation(ATTENTION_NAME)
    facts = model_facts("", model, model.dtype, max_model_len)._replace(eos_ids=frozenset({EOS_ID}))
    kv = KVCache(
        kv_shape(model.config),
        num_slots=num_slots,
        max_len=slot_len(max_model_len, TAIL_LEN),
        dtype=model.dtype,
        device=model.device,
    )
    return Target(model, facts, kv, numerics, tokenizer=tokenizer or TinyTokenizer())


@contextmanager
def plain_attention(target: Target) -> Iterator[PreTrainedModel]:
    """The target's model with transformers' own attention."""
    use_own_attention(target.model)
    try:
        yield target.model
    finally:
        target.model.set_attn_implementation(ATTENTION_NAME)


def probe_tiny(family: str, **settings: Any) -> None:
    """Probe a tiny target against its own model."""
    target = tiny_target(family, **settings)
    probe(target, plain_logits(tiny_model(family, target.facts.dtype).to(target.device)))


def tiny_loop(target: Target, drafter: Drafter, /, *, sampler: Sampler = sample, **settings: object) -> DecodeLoop:
    """A loop whose settings default to a small, busy engine: few slots, short chunks, a tight budget."""
    defaults: dict[str, object] = {"k_max": 24, "max_batch_size": 4, "chunk_tokens": 7}
    config = EngineConfig.model_validate(defaults | settings)
    profile = BUILT_IN_PROFILES[config.drafter]
    return DecodeLoop(config, target, drafter, make_policy(policy_settings(config), profile), profile, sampler=sampler)


def mixed_requests(count: int) -> list[Request]:
    """Greedy and sampled, short and long prompts, every kind of stop; request i is the same in every call."""
    kinds = (
        SamplingParams(max_new_tokens=40, temperature=0.0),
        SamplingParams(max_new_tokens=33, temperature=1.0, seed=11),
        SamplingParams(max_new_tokens=40, temperature=0.8, top_k=12, seed=12, ignore_eos=True),
        SamplingParams(max_new_tokens=40, temperature=1.2, top_p=0.8, seed=13, ignore_eos=True),
        SamplingParams(max_new_tokens=40, temperature=0.0, ignore_eos=True, stop=("ibc", "ccb", "cdc")),
        SamplingParams(max_new_tokens=40, temperature=0.7, min_p=0.05, seed=14, stop_token_ids=(3, 30, 77)),
        SamplingParams(max_new_tokens=1, temperature=0.0),
        SamplingParams(max_new_tokens=25, temperature=0.0, ignore_eos=True, speculation=False),
    )
    return [
        Request(f"r{i}", random_prompt((5, 23, 1, 40, 12, 17, 3, 9)[i % 8], seed=i), kinds[i % len(kinds)])
        for i in range(count)
    ]


@cache
def references(family: str, count: int) -> dict[str, ReferenceResult]:
    """What plain decoding emits for `mixed_requests(count)`, in float64."""
    model = tiny_model(family)
    return {
        request.request_id: reference_decode(model, request.prompt_ids, request.params, (EOS_ID,), decode=decode)
        for request in mixed_requests(count)
    }


def run(loop: DecodeLoop, requests: Sequence[Request]) -> dict[str, str]:
    """Run all requests to the end; returns the concatenated text of each."""
    texts = {request.request_id: "" for request in requests}
    for request in requests:
        loop.add(request)
    while loop.has_work:
        for event in loop.step():
            texts[event.request.request_id] += event.text
    loop.check_integrity()
    return texts
