"""Thousands of requests that come, go and are cancelled: the slots afterwards are those before, and nobody is stuck."""

import random
from pathlib import Path

from echo_sched.engine.draft.eagle3.opening import open_eagle3
from echo_sched.engine.draft.merge import MergeDrafter
from echo_sched.engine.draft.ngram import NGramDrafter
from echo_sched.types import Request
from tests.counts import Counts
from tests.loops import tiny_loop, tiny_target
from tests.proof.random_requests import random_request
from tests.proof.sizes import Sized
from tests.tiny_heads import ORIGINAL, head_tensors, write_head

NUM_SLOTS = 8
MAX_MODEL_LEN = 40
MAX_QUEUE = 20
MAX_STEPS_PER_REQUEST = 60  # prompts of up to 39 tokens in chunks of 16, four output tokens, 20 in the queue before


def test_slots_are_the_same_before_and_after(counts: Counts, sized: Sized, tmp_path: Path) -> None:
    num_requests, chance, named = sized(150, 10_000), random.Random(0), counts.named
    target = tiny_target(num_slots=NUM_SLOTS, max_model_len=MAX_MODEL_LEN)
    head = open_eagle3(write_head(tmp_path, ORIGINAL, head_tensors(ORIGINAL)), target)
    drafter = MergeDrafter((head, NGramDrafter()))
    loop = tiny_loop(target, drafter, max_batch_size=NUM_SLOTS, chunk_tokens=16, gate="none", max_depth=3)
    going: dict[str, tuple[Request, int]] = {}  # with the step it came at
    num_steps = 0
    while named["requests"] < num_requests or loop.has_work:
        draining = num_steps % 100 > 60  # now and then nobody comes, until nobody is left
        while named["requests"] < num_requests and len(going) < MAX_QUEUE and not draining and chance.random() < 0.7:
            name = f"r{named['requests']}"
            request = random_request(chance, name, max_model_len=MAX_MODEL_LEN, max_new_tokens=4)
            loop.add(request)
            going[name] = request, num_steps
            named["requests"] += 1
        if going and chance.random() < 0.3:
            victim, _ = going.pop(chance.choice(list(going)))
            named[f"cancelled {'waiting' if victim.waiting else 'running'}"] += 1
            loop.cancel(victim.request_id)
        for event in loop.step():
            if event.finish is not None:
                del going[event.request.request_id]
                named["finished"] += 1
        num_steps += 1
        loop.check_integrity()
        assert all(num_steps - since < MAX_STEPS_PER_REQUEST for _, since in going.values()), "somebody is stuck"
        if not loop.has_work:
            assert not going and target.kv.num_free == head.kv.num_free == NUM_SLOTS
            named["idle steps"] += 1
    num_cancelled = named["cancelled waiting"] + named["cancelled running"]
    assert named["finished"] + num_cancelled == num_requests and num_cancelled > num_requests / 20
    assert named["idle steps"] > 1
