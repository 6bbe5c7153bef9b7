"""Decode loops over tiny models, the requests that exercise them, and what plain decoding says about those requests."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
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
from echo_sched.engine.model_config import kv_shape
from echo_sched.engine.models import model_facts, use_own_attention
from echo_sched.engine.probe import plain_logits, probe
from echo_sched.engine.reference import ReferenceResult, reference_decode
from echo_sched.engine.sampling import sample
from echo_sched.loop import DecodeLoop
from echo_sched.scheduler.cost import CostTable, DraftingCost
from echo_sched.scheduler.policy import PolicySettings, make_policy
from echo_sched.scheduler.starting_values import built_in_profile
from echo_sched.types import Request, SamplingParams
from tests.fakes import ScriptedDrafter
from tests.tiny_models import VOCAB_SIZE, decode, random_prompt, tiny_model

EOS_ID = 7
CHANCE = (0.9, 0.85, 0.85, 0.85, 0.9)  # by depth, that a scripted drafter proposes the target's own token
TAIL_LEN = 200  # the largest K_max of a test
CPU = torch.device("cpu")
STAIRS = CostTable(  # a made-up machine
    (1, 4, 5, 8, 9, 16, 17, 64),
    (0,),
    ((1.0,), (1.0,), (1.3,), (1.3,), (2.0,), (2.0,), (4.0,), (4.0,)),
    DraftingCost.constant(0.05),
    {},
)


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


def tiny_loop(
    target: Target,
    drafter: Drafter,
    /,
    *,
    sampler: Sampler = sample,
    cost: CostTable | None = None,
    **settings: object,
) -> DecodeLoop:
    """A loop whose settings default to a small, busy engine: few slots, short chunks, a tight budget.

    Without `cost` nothing has a price; with it, what is made up stays as it is.
    """
    defaults: dict[str, object] = {"drafter": "ngram", "k_max": 24, "max_batch_size": 4, "chunk_tokens": 7}
    defaults["live_costs"] = "off"
    config = EngineConfig.model_validate(defaults | settings)
    profile = replace(built_in_profile(config.drafter), cost=cost)
    policy = make_policy(PolicySettings.of(config), profile)
    return DecodeLoop(config, target, drafter, policy, profile, sampler=sampler)


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


def processed_requests(count: int) -> list[Request]:
    """Every logits processor, alone and with others; request i is the same in every call."""
    few = tuple(range(0, VOCAB_SIZE, 9))  # EOS is not among them
    kinds = (
        SamplingParams(max_new_tokens=40, temperature=0.0, ignore_eos=True, repetition_penalty=1.6),
        SamplingParams(max_new_tokens=40, temperature=0.8, seed=21, ignore_eos=True, repetition_penalty=0.7),
        SamplingParams(max_new_tokens=40, temperature=0.0, presence_penalty=-1.8, frequency_penalty=1.1),
        SamplingParams(max_new_tokens=40, seed=22, ignore_eos=True, frequency_penalty=-0.9, top_k=20),
        SamplingParams(max_new_tokens=40, temperature=0.0, logit_bias=((EOS_ID, 60.0),), min_new_tokens=9),
        SamplingParams(max_new_tokens=40, seed=23, allowed_token_ids=few, bad_token_ids=few[:3], presence_penalty=1.5),
        SamplingParams(
            max_new_tokens=40, temperature=0.7, seed=24, stop_token_ids=(3, 30, 77), min_new_tokens=12, stop=("c", "dd")
        ),
        SamplingParams(
            max_new_tokens=30,
            seed=25,
            top_p=0.9,
            repetition_penalty=1.3,
            presence_penalty=0.4,
            frequency_penalty=0.3,
            logit_bias=tuple((token, 1.5 if token % 2 else -1.5) for token in range(0, VOCAB_SIZE, 3)),
            bad_token_ids=tuple(range(40, 60)),
            min_new_tokens=25,
        ),
    )
    return [
        Request(f"p{i}", random_prompt((7, 30, 2, 11, 19, 4, 26, 13)[i % 8], seed=100 + i), kinds[i % len(kinds)])
        for i in range(count)
    ]


@cache
def references(
    family: str, count: int, make: Callable[[int], list[Request]] = mixed_requests
) -> dict[str, ReferenceResult]:
    """What plain decoding emits for `make(count)`, in float64."""
    model = tiny_model(family)
    return {
        request.request_id: reference_decode(model, request.prompt_ids, request.params, (EOS_ID,), decode=decode)
        for request in make(count)
    }


def scripted(
    family: str,
    count: int,
    chance: Sequence[float] = CHANCE,
    *,
    signal: bool = False,
    make: Callable[[int], list[Request]] = mixed_requests,
) -> ScriptedDrafter:
    """A drafter that knows what plain decoding emits for `make(count)`."""
    outputs = {name: result.output_ids for name, result in references(family, count, make).items()}
    return ScriptedDrafter(outputs, chance, VOCAB_SIZE, signal=signal)


def assert_equal_to_reference(
    loop: DecodeLoop, family: str, count: int, make: Callable[[int], list[Request]] = mixed_requests
) -> list[Request]:
    """Every token and every finish; and where the drafter knows the answer, some of it was accepted."""
    requests = make(count)
    run(loop, requests)
    for request in requests:
        expected = references(family, count, make)[request.request_id]
        assert request.output_ids == expected.output_ids, f"{request.request_id}: other tokens"
        assert request.finish == expected.finish, f"{request.request_id}: other finish"
    if loop.drafter.name == "scripted" and loop.config.policy != "off" and loop.config.k_max:
        assert sum(request.stats.num_accepted for request in requests) > 0
    return requests


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
