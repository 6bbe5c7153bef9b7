"""The first promise: whatever is drafted and however it is scheduled, the tokens are those of plain decoding."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from echo_sched.engine import accept as accept_module
from echo_sched.engine.draft.ngram import NGramDrafter
from echo_sched.engine.sampling import sample
from echo_sched.tree import ROOT
from echo_sched.types import SamplingParams
from tests.counts import MECHANISMS, STOPS, Counts, watched
from tests.fakes import ScriptedDrafter
from tests.loops import (
    CHANCE,
    STAIRS,
    assert_equal_to_reference,
    mixed_requests,
    references,
    run,
    scripted,
    tiny_loop,
    tiny_target,
)
from tests.tiny_models import FAMILIES, VOCAB_SIZE

POLICIES: dict[str, dict[str, Any]] = {
    "off": {"policy": "off"},
    "static": {"policy": "static"},
    "table": {"policy": "table", "shapes": "1=2.2.1/4=1.1"},
    "dynamic": {"policy": "dynamic"},
    "echo": {"policy": "echo"},
    "echo at a price": {"policy": "echo", "cost": STAIRS, "k_max_rule": "auto"},
    "goodput": {"policy": "goodput", "cost": STAIRS, "k_max_rule": "auto"},
    "goodput without a price": {"policy": "goodput"},
    "echo, no gate": {"policy": "echo", "gate": "none"},
    "echo, dense gate by branch": {"policy": "echo", "gate": "dense", "gate_scope": "branch"},
    "echo, random gate": {"policy": "echo", "gate": "random"},
    "echo, no transfer": {"policy": "echo", "transfer": "off", "thresholds": "single"},
    "echo, no width": {"policy": "echo", "widen": "off"},
    "echo, width at truncation": {"policy": "echo", "widen_scope": "truncation"},
}
MAX_DEPTH = 5


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_emits_what_plain_decoding_emits(family: str, batch: int) -> None:
    target = tiny_target(family, num_slots=batch)
    loop = tiny_loop(target, scripted(family, 8), max_depth=MAX_DEPTH, max_batch_size=batch)
    assert_equal_to_reference(loop, family, 8)


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_emits_what_plain_decoding_emits(policy: str, batch: int) -> None:
    target = tiny_target("llama", num_slots=batch)
    for drafter in (scripted("llama", 16), NGramDrafter()):
        loop = tiny_loop(target, drafter, max_depth=MAX_DEPTH, max_batch_size=batch, **POLICIES[policy])
        assert_equal_to_reference(loop, "llama", 16)


@pytest.mark.parametrize("k_max", [0, 1, 3, 200])
def test_every_budget_emits_what_plain_decoding_emits(k_max: int) -> None:
    target = tiny_target("qwen2")
    loop = tiny_loop(target, scripted("qwen2", 8), max_depth=MAX_DEPTH, k_max=k_max)
    assert_equal_to_reference(loop, "qwen2", 8)


def test_neighbours_that_come_and_go_change_nothing() -> None:
    """Cancelled requests, at every phase, leave no trace in the others' tokens."""
    loop = tiny_loop(tiny_target("llama"), scripted("llama", 8), max_depth=MAX_DEPTH)
    survivors, victims = mixed_requests(8), mixed_requests(8)
    for index, victim in enumerate(victims):
        victim.request_id = f"victim{index}"
        loop.drafter.continuations[victim.request_id] = []  # type: ignore[attr-defined]
        loop.add(victim)
        loop.add(survivors[index])
    num_steps = 0
    while loop.has_work:
        loop.step()
        num_steps += 1
        if num_steps % 2 == 0 and victims:
            loop.cancel(victims.pop().request_id)
        loop.check_integrity()
    for request in survivors:
        assert request.output_ids == references("llama", 8)[request.request_id].output_ids


def test_the_suite_covers_what_it_claims() -> None:
    """Accepted runs of every depth, later siblings, truncation, widening, transfer, and stops inside accepted runs."""
    counts = Counts()
    for signal in (True, False):
        drafter = scripted("llama", 16, signal=signal)
        loop = tiny_loop(tiny_target("llama"), drafter, max_depth=MAX_DEPTH, k_max=60)
        for request in mixed_requests(16):
            loop.add(request)
        with watched(counts):
            while loop.has_work:
                counts.take_step(loop, loop.step())
    assert all(counts.lengths[depth] for depth in range(MAX_DEPTH + 1)), counts
    assert counts.ranks[0] and counts.ranks[1], counts
    assert all(counts.named[name] for name in (*MECHANISMS, *STOPS)), counts


def wrong_always_greedy(logits: Tensor, params: Sequence[SamplingParams], positions: Sequence[int]) -> list[int]:
    """Planted: accept by argmax under sampling."""
    return [int(token) for token in logits.argmax(dim=-1)]


def wrong_position(logits: Tensor, params: Sequence[SamplingParams], positions: Sequence[int]) -> list[int]:
    """Planted: a node draws with its parent's random numbers."""
    return sample(logits, params, [max(positions) for _ in positions])


@pytest.mark.parametrize("sampler", [wrong_always_greedy, wrong_position])
def test_a_planted_wrong_draw_is_caught(sampler: Any) -> None:
    loop = tiny_loop(tiny_target("llama"), scripted("llama", 8), max_depth=MAX_DEPTH, sampler=sampler)
    with pytest.raises(AssertionError, match=r"r\d: other tokens"):
        assert_equal_to_reference(loop, "llama", 8)


def test_a_planted_greedy_child_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: step onto the drafter's best child whatever the target draws."""
    right = accept_module.DraftTree.child
    monkeypatch.setattr(
        accept_module.DraftTree,
        "child",
        lambda tree, node, token: right(tree, node, token) if node != ROOT or not tree.tokens else 0,
    )
    loop = tiny_loop(tiny_target("llama"), scripted("llama", 8, chance=(0.5,)), max_depth=MAX_DEPTH)
    with pytest.raises(AssertionError, match=r"r\d: other tokens"):
        assert_equal_to_reference(loop, "llama", 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral"])
def test_exact_numerics_make_speculation_bitwise_equal(family: str, dtype: torch.dtype) -> None:
    """In low precision the tokens of speculation and of plain decoding agree only if every row's logits do."""
    target = tiny_target(family, dtype=dtype, numerics="exact", num_slots=8)
    plain = mixed_requests(8)
    run(tiny_loop(target, NGramDrafter(), policy="off", max_batch_size=1), plain)
    script = {request.request_id: request.output_ids for request in plain}
    for policy in ("static", "echo"):
        requests = mixed_requests(8)
        drafter = ScriptedDrafter(script, CHANCE, VOCAB_SIZE)
        run(tiny_loop(target, drafter, policy=policy, max_depth=MAX_DEPTH, max_batch_size=8), requests)
        assert {request.request_id: request.output_ids for request in requests} == script
        assert sum(request.stats.num_accepted for request in requests) > 20
