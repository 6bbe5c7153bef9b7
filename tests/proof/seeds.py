"""Requests whose tokens only their seeds may decide, and the company in which they are decoded.

`python -m tests.proof.seeds tiny` decodes them in a process of its own and prints their tokens.
"""

import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from echo_sched.config import EngineConfig
from echo_sched.loop import DecodeLoop
from echo_sched.types import Request, SamplingParams
from tests.loops import tiny_loop, tiny_target
from tests.proof.random_requests import random_params
from tests.tiny_drafts import RELATED, lm_drafter
from tests.tiny_models import random_prompt

BATCH = 32
Outputs = dict[str, list[int]]
KINDS = (
    SamplingParams(max_new_tokens=16, temperature=1.0, seed=1),
    SamplingParams(max_new_tokens=16, temperature=0.8, top_p=0.9, seed=2**64 - 1, ignore_eos=True),
    SamplingParams(max_new_tokens=16, temperature=1.2, top_k=40, seed=3, repetition_penalty=1.2, frequency_penalty=0.3),
    SamplingParams(max_new_tokens=16, temperature=0.0, presence_penalty=0.4, ignore_eos=True),
)


class Case(NamedTuple):
    loop: DecodeLoop
    vocab_size: int
    num_neighbours: int  # at most at a time

    def requests(self) -> list[Request]:
        return [
            Request(f"own{i}", random_prompt(5 + 9 * i, seed=i, vocab_size=self.vocab_size), params)
            for i, params in enumerate(KINDS)
        ]

    def neighbour(self, chance: random.Random, name: str) -> Request:
        prompt = random_prompt(chance.randint(1, 25), chance.randrange(10**6), self.vocab_size)
        return Request(name, prompt, random_params(chance, chance.randint(1, 6), vocab_size=self.vocab_size))


def open_tiny() -> Case:
    """float64, with a drafter that is often right."""
    drafter = lm_drafter(noise=RELATED, num_slots=BATCH, max_len=100)
    target = tiny_target(num_slots=BATCH, max_model_len=100)
    loop = tiny_loop(target, drafter, max_batch_size=BATCH, k_max=64, chunk_tokens=32, gate="none")
    return Case(loop, target.facts.vocab_size, BATCH - len(KINDS))


def open_smollm2() -> Case:
    """The default model and the head that ships, bfloat16, exact numerics."""
    settings = {"numerics": "exact", "price": "off", "max_batch_size": BATCH, "max_model_len": 128, "k_max": 64}
    loop = DecodeLoop.from_config(EngineConfig.model_validate(settings))
    return Case(loop, loop.vocab_size, BATCH - len(KINDS))


OPEN: dict[str, Callable[[], Case]] = {"tiny": open_tiny, "smollm2": open_smollm2}


def drain(loop: DecodeLoop, requests: Sequence[Request]) -> Outputs:
    while loop.has_work:
        loop.step()
    loop.check_integrity()
    return {request.request_id: request.output_ids for request in requests}


def alone(case: Case) -> Outputs:
    """Each by itself."""
    outputs: Outputs = {}
    for request in case.requests():
        case.loop.add(request)
        outputs |= drain(case.loop, [request])
    return outputs


def alone_without_drafts(case: Case) -> Outputs:
    outputs: Outputs = {}
    for request in case.requests():
        request.params = replace(request.params, speculation=False)
        case.loop.add(request)
        outputs |= drain(case.loop, [request])
    return outputs


def in_a_full_batch(case: Case) -> Outputs:
    """All slots are taken, by requests that came before and after them."""
    chance, requests = random.Random(5), case.requests()
    everybody = [*requests, *(case.neighbour(chance, f"n{i}") for i in range(case.num_neighbours))]
    chance.shuffle(everybody)
    for request in everybody:
        case.loop.add(request)
    return drain(case.loop, requests)


def under_load(case: Case) -> Outputs:
    """Neighbours come and are cancelled at every step, and the requests wait in the queue among them."""
    chance, requests = random.Random(6), case.requests()
    arriving, number = list(requests), 0
    victims: list[str] = []
    while arriving or any(request.finish is None for request in requests):
        for _ in range(chance.randrange(4)):
            number += 1
            neighbour = case.neighbour(chance, f"n{number}")
            case.loop.add(neighbour)
            victims.append(neighbour.request_id)
        if arriving and chance.random() < 0.4:
            case.loop.add(arriving.pop())
        if chance.random() < 0.6:
            case.loop.cancel(victims.pop(chance.randrange(len(victims))) if victims else "nobody")
        case.loop.step()
        case.loop.check_integrity()
    for name in victims:
        case.loop.cancel(name)
    return drain(case.loop, requests)


if __name__ == "__main__":
    print(json.dumps(alone(OPEN[sys.argv[1]]())))
