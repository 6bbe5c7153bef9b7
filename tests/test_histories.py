"""Random histories of arrivals, steps and cancellations: tokens and KV stay what plain decoding makes them."""

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_sched.loop import DecodeLoop
from echo_sched.tree import Segment, pack
from echo_sched.types import Request
from tests.fakes import ScriptedDrafter
from tests.loops import mixed_requests, references, tiny_loop, tiny_target
from tests.tiny_models import VOCAB_SIZE

NUM_SLOTS = 4  # one more than the loop may use, to recompute KV in
TARGET = tiny_target("llama", num_slots=NUM_SLOTS)
OUTPUTS = {name: result.output_ids for name, result in references("llama", 8).items()}
SETTINGS: list[dict[str, Any]] = [
    {"policy": "echo"},
    {"policy": "echo", "gate": "none", "transfer": "off"},
    {"policy": "echo", "gate": "dense", "widen_scope": "truncation"},
    {"policy": "static"},
    {"policy": "off"},
]


def check_kv(loop: DecodeLoop, request: Request) -> None:
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


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_random_histories(data: st.DataObject) -> None:
    chosen = data.draw(st.sampled_from(SETTINGS)) | {"k_max": data.draw(st.sampled_from([1, 7, 24, 90]))}
    loop = tiny_loop(
        TARGET, ScriptedDrafter(OUTPUTS, (0.85,), VOCAB_SIZE), max_depth=5, max_batch_size=NUM_SLOTS - 1, **chosen
    )
    arriving = data.draw(st.permutations(mixed_requests(8)))
    kept: list[Request] = []
    while arriving or loop.has_work:
        action = data.draw(st.sampled_from(["arrive", "step", "step", "step", "step", "cancel", "look"]))
        if action == "arrive" and arriving:
            kept.append(arriving.pop())
            loop.add(kept[-1])
        elif action == "cancel" and kept and data.draw(st.integers(0, 3)) == 0:
            loop.cancel(kept.pop(data.draw(st.integers(0, len(kept) - 1))).request_id)
        elif action == "look" and loop._running:
            check_kv(loop, data.draw(st.sampled_from(loop._running)))
        else:
            loop.step()
        loop.check_integrity()
    assert TARGET.kv.num_free == NUM_SLOTS
    for request in kept:
        assert request.output_ids == OUTPUTS[request.request_id]
