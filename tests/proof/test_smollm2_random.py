"""The default model, exact numerics: random requests, settings, arrivals, cancellations; bit for bit `off` alone."""

import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

from echo_sched.config import EngineConfig
from echo_sched.loop import DecodeLoop
from echo_sched.prompts import encode_prompt, load_prompts
from echo_sched.types import Request, TokenEvent, TokenLogprobs
from tests.conftest import REPOSITORY
from tests.counts import Counts, watched
from tests.proof.random_requests import random_logprobs, random_params
from tests.test_exactness import POLICIES

pytestmark = pytest.mark.long
MAX_NEW_TOKENS = 24
MAX_MODEL_LEN = 512
GROUP = 6  # requests under one set of settings
BASE: dict[str, Any] = {
    "numerics": "exact",
    "price": "off",  # what a price buys hangs on measured seconds
    "max_batch_size": 8,
    "max_model_len": MAX_MODEL_LEN,
    "k_max": 64,
}
Words = dict[str, list[TokenLogprobs]]  # by request: of the prompt and of the output


def random_texts(loop: DecodeLoop, count: int, name: str = "r") -> list[Request]:
    """Example prompts with random fields; the same in every call."""
    chance = random.Random(name)
    prompts = load_prompts(REPOSITORY / "examples" / "prompts.jsonl").prompts
    requests = []
    for i in range(count):
        prompt_ids = tuple(encode_prompt(loop.tokenizer, chance.choice(prompts)))[: MAX_MODEL_LEN - MAX_NEW_TOKENS]
        params = random_params(chance, MAX_NEW_TOKENS, vocab_size=loop.vocab_size, letters=" etaoin")
        requests.append(Request(f"{name}{i}", prompt_ids, params, logprobs=random_logprobs(chance, len(prompt_ids))))
    return requests


def random_settings(chance: random.Random) -> tuple[str, dict[str, Any]]:
    name = chance.choice(sorted(set(POLICIES) - {"off"}))
    settings = {key: value for key, value in POLICIES[name].items() if key not in ("cost", "k_max_rule")}
    settings |= {"k_max": chance.choice((6, 24, 64)), "max_batch_size": chance.randint(2, 8)}
    return name, settings | {"max_depth": chance.choice((3, 6)), "chunk_tokens": chance.choice((16, 64))}


def note(words: Words, events: Sequence[TokenEvent]) -> None:
    for event in events:
        words[event.request.request_id] += [*event.prompt_logprobs, *event.logprobs]


def plainly(loop: DecodeLoop, requests: Sequence[Request]) -> Words:
    words: Words = defaultdict(list)
    for request in requests:
        loop.add(request)
        while loop.has_work:
            note(words, loop.step())
    return words


def in_company(loop: DecodeLoop, requests: Sequence[Request], chance: random.Random, counts: Counts) -> Words:
    """They arrive one after the other, beside others that are cancelled."""
    words: Words = defaultdict(list)
    arriving, cancelled = list(requests), random_texts(loop, len(requests), "victim")
    victims: list[Request] = []
    while arriving or loop.has_work:
        if arriving and chance.random() < 0.5:
            loop.add(arriving.pop())
            victims.append(cancelled.pop())
            loop.add(victims[-1])
        if victims and chance.random() < 0.4:
            victim = victims.pop()
            counts.named["cancellations"] += victim.finish is None
            loop.cancel(victim.request_id)
        events = loop.step()
        note(words, events)
        if events:
            counts.take_step(loop, events)
        loop.check_integrity()
    return words


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("drafter", "count"), [("auto", 24), ("ngram", 12)])
def test_random_requests_are_bit_for_bit_off_alone(dtype: str, drafter: str, count: int, counts: Counts) -> None:
    base = DecodeLoop.from_config(EngineConfig.model_validate(BASE | {"dtype": dtype, "drafter": drafter}))
    plain, chance, used = random_texts(base, count), random.Random(dtype), set()
    off = base.with_policy(base.config.model_copy(update={"policy": "off", "max_batch_size": 1}))
    expected = plainly(off, plain)
    speculated, found = random_texts(base, count), Words()
    with watched(counts):
        for start in range(0, count, GROUP):
            name, settings = random_settings(chance)
            used.add(name)
            loop = base.with_policy(base.config.model_copy(update=settings))
            found |= in_company(loop, speculated[start : start + GROUP], chance, counts)
    for ours, theirs in zip(speculated, plain, strict=True):
        same = (ours.output_ids, ours.finish) == (theirs.output_ids, theirs.finish)
        counts.named.update({"requests compared": 1, "tokens": len(ours.output_ids), "mismatches": int(not same)})
        assert found[ours.request_id] == expected[ours.request_id], "other logprobs"
    counts.named["logprobs compared"] = sum(map(len, expected.values()))
    counts.report(policies=", ".join(sorted(used)))
    assert counts.named["mismatches"] == 0
    assert counts.named["cancellations"] and counts.named["logprobs compared"]
    assert len(counts.accepted_by_depth) > 1, "runs of two nodes and more"
