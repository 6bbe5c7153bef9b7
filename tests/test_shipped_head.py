"""The head that ships, with the model it was made for: same tokens, drafts worth having, ready after a long break."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from echo_sched.config import DEFAULT_MODEL, EngineConfig
from echo_sched.loop import DecodeLoop
from echo_sched.prompts import encode_prompt, load_prompts
from echo_sched.types import Request, SamplingParams
from tests.conftest import REPOSITORY

GREEDY = SamplingParams(max_new_tokens=32, temperature=0.0, ignore_eos=True)
SAMPLED = replace(GREEDY, temperature=0.8, top_p=0.95, seed=3)
CHAIN = {"policy": "static", "max_depth": 3, "branching": 1, "k_max": 12, "price": "off"}
ARMS: dict[str, dict[str, Any]] = {
    "off": {"policy": "off"},
    "dynamic": {"policy": "dynamic", "max_depth": 6, "branching": 8, "price": "off"},
    "echo": {"policy": "echo"},
    "goodput": {"policy": "goodput", "k_max_rule": "auto"},
}


@pytest.fixture(scope="module")
def loop() -> DecodeLoop:
    """As served by default, but for numerics."""
    return DecodeLoop.from_config(EngineConfig(numerics="exact", max_batch_size=4, max_model_len=768))


def requests(loop: DecodeLoop, count: int, params: SamplingParams) -> list[Request]:
    prompts = load_prompts(REPOSITORY / "examples" / "prompts.jsonl").prompts
    chosen = prompts[:: len(prompts) // count][:count]
    return [
        Request(f"r{i}", tuple(encode_prompt(loop.tokenizer, p, "always")), replace(params, seed=params.seed + i))
        for i, p in enumerate(chosen)
    ]


def run(loop: DecodeLoop, served: list[Request]) -> list[list[int]]:
    for request in served:
        loop.add(request)
    while loop.has_work:
        loop.step()
    loop.check_integrity()
    return [request.output_ids for request in served]


def test_it_drafts_by_default(loop: DecodeLoop) -> None:
    assert (loop.config.drafter, loop.config.draft_model) == ("eagle3", DEFAULT_MODEL)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_every_policy_says_what_plain_decoding_says_bit_for_bit(loop: DecodeLoop, params: SamplingParams) -> None:
    outputs, verified = {}, Counter[str]()
    for name, settings in ARMS.items():
        served = requests(loop, 4, params)
        outputs[name] = run(loop.with_policy(loop.config.model_copy(update=settings)), served)
        verified[name] = sum(request.stats.num_verified for request in served)
    assert all(output == outputs["off"] for output in outputs.values())
    assert verified["dynamic"] and not verified["off"]


def test_loops_beside_each_other_disturb_nobody(loop: DecodeLoop) -> None:
    """Step by step in turn, on the same weights: each says what it says alone, with KV and drafts of its own."""
    alone = run(loop.with_policy(loop.config.model_copy(update=ARMS["off"])), requests(loop, 4, GREEDY))
    loops = [loop.beside(loop.config.model_copy(update=settings)) for settings in ARMS.values()]
    served = [requests(loop, 4, GREEDY) for _ in loops]
    for one, its_requests in zip(loops, served, strict=True):
        for request in its_requests:
            one.add(request)
    while any(one.has_work for one in loops):
        for one in loops:
            one.step()
    for one, its_requests in zip(loops, served, strict=True):
        one.check_integrity()
        assert [request.output_ids for request in its_requests] == alone
    dynamic = served[list(ARMS).index("dynamic")]
    assert sum(request.stats.num_accepted for request in dynamic)


def test_its_drafts_are_worth_having(loop: DecodeLoop) -> None:
    served = requests(loop, 4, replace(GREEDY, max_new_tokens=48))
    run(loop.with_policy(loop.config.model_copy(update=ARMS["dynamic"])), served)
    num_steps = sum(request.stats.num_verify_steps for request in served)
    assert sum(request.stats.num_emitted for request in served) / num_steps > 1.8


def test_after_200_steps_without_drafting_it_drafts_as_well_as_ever(loop: DecodeLoop) -> None:
    """The same text, bit for bit: chains below the tokens behind the break, with and without it."""
    num_before, num_after = 200, 110
    params = replace(GREEDY, max_new_tokens=num_before + num_after + 8)
    chains = loop.with_policy(loop.config.model_copy(update=CHAIN | {"max_batch_size": 2}))
    on, off = chains.policy, loop.with_policy(loop.config.model_copy(update={"policy": "off"})).policy
    found = []
    for first_draft in (0, num_before):
        served = requests(loop, 2, params)
        for request in served:
            chains.add(request)
        lengths: list[int] = []
        while chains.has_work:
            before = [(len(request.output_ids), request.stats.num_accepted) for request in served]
            chains.scheduler.policy = on if min(length for length, _ in before) >= first_draft else off
            chains.step()
            lengths += [
                request.stats.num_accepted - accepted
                for request, (length, accepted) in zip(served, before, strict=True)
                if num_before <= length < num_before + num_after
            ]
        found.append(([request.output_ids for request in served], 1 + sum(lengths) / len(lengths), len(lengths)))
    (tokens, undisturbed, _), (same_tokens, after_break, num_steps) = found
    assert tokens == same_tokens and num_steps > 50
    assert after_break == pytest.approx(undisturbed, rel=0.03)
