"""Random histories of arrivals, steps and cancellations: tokens and KV stay what plain decoding makes them."""

import random
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_sched.loop import DecodeLoop
from echo_sched.tree import Segment, pack
from echo_sched.types import Request
from tests.fakes import ScriptedDrafter
from tests.loops import STAIRS, mixed_requests, processed_requests, references, tiny_loop, tiny_target
from tests.tiny_models import VOCAB_SIZE

NUM_SLOTS = 4  # one more than the loop may use, to recompute KV in
TARGET = tiny_target("llama", num_slots=NUM_SLOTS)
OUTPUTS = {
    name: result.output_ids
    for make in (mixed_requests, processed_requests)
    for name, result in references("llama", 8, make).items()
}
SETTINGS: list[dict[str, Any]] = [
    {"policy": "echo"},
    {"policy": "echo", "gate": "none", "transfer": "off"},
    {"policy": "echo", "gate": "dense", "widen_scope": "truncation"},
    {"policy": "static"},
    {"policy": "dynamic"},
    {"policy": "goodput", "cost": STAIRS, "k_max_rule": "auto"},
    {"policy": "off"},
]


def check_kv(request: Request) -> None:
    """The request's committed keys and values equal those of its tokens computed from scratch."""
    kv, slot = TARGET.kv, request.slot
    assert slot is not None and kv.length(slot) == request.num_computed
    tokens = request.tokens_from(0)[: request.num_computed]
    if not tokens:
        return
    scratch = kv.allocate()
    TARGET.forward(pack([Segment(scratch, 0, tokens, range(-1, len(tokens) - 1), 1)]))
    for layer in range(kv.shape.num_layers):
        for ours, fresh in zip(
            kv.view(layer, slot, slot + 1, len(tokens)), kv.view(layer, scratch, scratch + 1, len(tokens)), strict=True
        ):
            torch.testing.assert_close(ours, fresh, rtol=1e-9, atol=1e-9)
    kv.free(scratch)


@settings(max_examples=12)
@given(st.integers(0, 2**32), st.sampled_from(SETTINGS), st.sampled_from([1, 7, 24, 90]))
def test_random_histories(seed: int, chosen: dict[str, Any], k_max: int) -> None:
    chance = random.Random(seed)
    drafter = ScriptedDrafter(OUTPUTS, (0.85,), VOCAB_SIZE)
    loop = tiny_loop(TARGET, drafter, max_depth=5, max_batch_size=NUM_SLOTS - 1, k_max=k_max, **chosen)
    arriving = chance.sample([*mixed_requests(8), *processed_requests(8)], 7)
    kept: list[Request] = []
    try:
        while arriving or loop.has_work:
            act(loop, arriving, kept, chance)
            loop.check_integrity()
        assert TARGET.kv.num_free == NUM_SLOTS
    finally:
        for request in kept:  # a failing example must not fail the next one too
            loop.cancel(request.request_id)
    for request in kept:
        assert request.output_ids == OUTPUTS[request.request_id]


def act(loop: DecodeLoop, arriving: list[Request], kept: list[Request], chance: random.Random) -> None:
    """One event of a history: somebody comes, somebody goes, a step, or a look at the cache."""
    event = chance.random()
    if event < 0.15 and arriving:
        kept.append(arriving.pop())
        loop.add(kept[-1])
    elif event < 0.19 and kept:
        loop.cancel(kept.pop(chance.randrange(len(kept))).request_id)
    elif event < 0.3 and any(request.slot is not None for request in kept):
        check_kv(chance.choice([request for request in kept if request.slot is not None]))
    else:
        loop.step()
