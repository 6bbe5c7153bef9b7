"""Admission of the loop against a twin that is nothing but two lists: who runs, and how far each prompt has come."""

import random

from echo_sched.engine.draft.ngram import NGramDrafter
from echo_sched.loop import DecodeLoop
from echo_sched.scheduler.admission import IDLE_CHUNK_FACTOR
from echo_sched.types import Request, SamplingParams
from tests.counts import Counts
from tests.loops import tiny_loop, tiny_target
from tests.proof.sizes import Sized
from tests.tiny_models import random_prompt

MAX_MODEL_LEN = 64


class Twin:
    """First come, first served: `num_slots` run, and prompts share what a step may compute beside decoding."""

    def __init__(self, num_slots: int, chunk_tokens: int) -> None:
        self.num_slots, self.chunk_tokens = num_slots, chunk_tokens
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.left: dict[str, int] = {}  # prompt tokens to come

    def step(self) -> None:
        while self.waiting and len(self.running) < self.num_slots:
            self.running.append(self.waiting.pop(0))
        num_prefilling = sum(self.left[request.request_id] > 0 for request in self.running)
        extra = (IDLE_CHUNK_FACTOR - 1) * self.chunk_tokens
        budget = self.chunk_tokens + (extra * num_prefilling // len(self.running) if self.running else 0)
        for request in self.running:
            size = min(budget, self.left[request.request_id])
            self.left[request.request_id] -= size
            budget -= size

    def drop(self, request: Request) -> None:
        (self.running if request in self.running else self.waiting).remove(request)
        del self.left[request.request_id]

    def check(self, loop: DecodeLoop) -> None:
        assert (loop.num_waiting, loop.num_running) == (len(self.waiting), len(self.running))
        assert all(request.waiting for request in self.waiting)
        for request in self.running:
            computed = min(request.num_computed, len(request.prompt_ids))
            assert (request.slot is not None) and computed == len(request.prompt_ids) - self.left[request.request_id]
        assert len({request.slot for request in self.running}) == len(self.running)


def one_step(loop: DecodeLoop, twin: Twin, counts: Counts) -> None:
    decoding = [request for request in twin.running if request.decoding]
    prefilling = any(request.prefilling for request in twin.running)
    twin.step()
    caps = {request.request_id: request.num_remaining - 1 for request in decoding}
    room = {request.request_id: MAX_MODEL_LEN - request.num_tokens - 1 for request in decoding}
    events = loop.step()
    record = loop.last_record
    if record is not None and events:
        for node in record.node_readings:
            assert node.depth <= min(caps[node.request_id], room[node.request_id]), "a draft beyond the context"
    emitting = [event.request for event in events]
    assert all(request in emitting for request in decoding), "prompts keep nobody from decoding"
    counts.named["steps"] += 1
    counts.named["steps with prompts beside decodes"] += bool(decoding and prefilling)
    for event in events:
        if event.finish is not None:
            twin.drop(event.request)
            counts.named["requests finished"] += 1
            counts.named["of those up to the context"] += event.request.num_tokens == MAX_MODEL_LEN


def random_arrival(chance: random.Random, name: str) -> Request:
    """Its prompt and output fill the context, or it wants a token or a few."""
    length = chance.choice((MAX_MODEL_LEN - 1, chance.randint(1, 12), chance.randint(1, MAX_MODEL_LEN - 8)))
    num_new = chance.choice((1, chance.randint(1, 7), min(MAX_MODEL_LEN - length, 20)))
    params = SamplingParams(max_new_tokens=min(num_new, MAX_MODEL_LEN - length), ignore_eos=True)
    return Request(name, random_prompt(length, seed=length), params)


def history(loop: DecodeLoop, twin: Twin, chance: random.Random, counts: Counts) -> None:
    """Somebody comes, somebody goes, or a step, in any order; then steps until nobody is left."""
    num_arrivals = chance.randint(4, 16)
    while num_arrivals or loop.has_work:
        event = chance.random()
        if event < 0.25 and num_arrivals:
            request = random_arrival(chance, f"r{num_arrivals}")
            num_arrivals -= 1
            loop.add(request)
            twin.waiting.append(request)
            twin.left[request.request_id] = len(request.prompt_ids)
        elif event < 0.3 and twin.left:
            victim = chance.choice([*twin.running, *twin.waiting])
            counts.named["cancelled in their prompts"] += victim.prefilling
            loop.cancel(victim.request_id)
            twin.drop(victim)
        else:
            one_step(loop, twin, counts)
        twin.check(loop)
        loop.check_integrity()


def test_the_loop_admits_as_the_twin_does_and_drops_nobody(counts: Counts, sized: Sized) -> None:
    chance = random.Random(0)
    for _ in range(sized(12, 500)):
        num_slots, chunk_tokens = chance.randint(1, 4), chance.choice((1, 3, 10))
        target = tiny_target(num_slots=4, max_model_len=MAX_MODEL_LEN)
        loop = tiny_loop(target, NGramDrafter(), max_batch_size=num_slots, chunk_tokens=chunk_tokens, gate="none")
        loop.recording = True
        twin = Twin(num_slots, chunk_tokens)
        history(loop, twin, chance, counts)
        assert not twin.left and target.kv.num_free == 4
    assert len(counts.named) == 5 and all(counts.named.values()), counts
