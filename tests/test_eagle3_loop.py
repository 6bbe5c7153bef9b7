"""The decode loop with an EAGLE-3 drafter: same tokens, true features, catching up, a word when a head is useless."""

import logging
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from echo_sched.engine.draft.eagle3.drafter import Eagle3Drafter
from echo_sched.engine.draft.eagle3.opening import open_eagle3
from echo_sched.engine.forward import Target
from echo_sched.engine.kv import KVCache, KVShape
from echo_sched.engine.reference import reference_decode
from echo_sched.loop import DecodeLoop
from echo_sched.loop import rows as rows_module
from echo_sched.loop.self_check import NUM_TOKENS, PROMPTS, self_check
from echo_sched.tree import ROOT, DraftTree, Frontier, Offers, Segment, pack
from echo_sched.types import Request, SamplingParams
from tests.fakes import ScriptedDrafter
from tests.loops import TinyTokenizer, mixed_requests, plain_attention, references, run, tiny_loop, tiny_target
from tests.tiny_heads import ORIGINAL, head_tensors, write_head
from tests.tiny_models import FAMILIES, VOCAB_SIZE, random_prompt

WIDE = {"branching": 20, "k_max": 60, "max_depth": 3}  # a random head is right about as often as chance: ask for much
GREEDY = SamplingParams(max_new_tokens=60, temperature=0.0, ignore_eos=True)


def eagle(target: Target, folder: Path) -> Eagle3Drafter:
    return open_eagle3(write_head(folder, ORIGINAL, head_tensors(ORIGINAL)), target)


def eagle_loop(target: Target, drafter: Any, folder: Path, **settings: object) -> DecodeLoop:
    return tiny_loop(target, drafter, **{"drafter": "eagle3", "draft_model": str(folder), **WIDE, **settings})


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize(
    ("settings", "num_accepted"), [({"policy": "static"}, 1), ({"gate": "none"}, 6)], ids=["static", "echo"]
)
def test_tokens_are_those_of_plain_decoding(
    settings: dict[str, Any], num_accepted: int, batch: int, tmp_path: Path
) -> None:
    target = tiny_target(num_slots=batch)
    drafter, requests = eagle(target, tmp_path), mixed_requests(8)
    loop = eagle_loop(target, drafter, tmp_path, max_batch_size=batch, **settings)
    run(loop, requests)
    for request in requests:
        expected = references("llama", 8)[request.request_id]
        assert (request.output_ids, request.finish) == (expected.output_ids, expected.finish)
    assert sum(request.stats.num_accepted for request in requests) >= num_accepted
    assert drafter.kv.num_free == batch


def test_in_low_precision_exact_numerics_hold_with_a_head_too(tmp_path: Path) -> None:
    target = tiny_target(dtype=torch.bfloat16, numerics="exact")
    drafter = eagle(target, tmp_path)
    outputs = []
    for settings in ({"policy": "off"}, {"gate": "none", "k_max": 24}):
        requests = mixed_requests(4)
        run(eagle_loop(target, drafter, tmp_path, **settings), requests)
        outputs.append([request.output_ids for request in requests])
    assert outputs[0] == outputs[1] and sum(request.stats.num_verified for request in requests) > 0


class Watched(Eagle3Drafter):
    """Keeps what it was told of each request, and what it offered below each root."""

    def watch(self) -> "Watched":
        self.told: dict[str, list[Tensor]] = defaultdict(list)
        self.offered: dict[tuple[str, int], list[tuple[int, float]]] = {}
        return self

    def observe(self, committed: Sequence[tuple[Request, int]], features: Tensor) -> None:
        counts = [count for _, count in committed]
        for (request, _), rows in zip(committed, features.split(counts), strict=True):
            self.told[request.request_id].append(rows)
        super().observe(committed, features)

    def expand(
        self, requests: Sequence[Request], trees: Sequence[DraftTree], frontier: Frontier, max_children: int
    ) -> Offers:
        offers = super().expand(requests, trees, frontier, max_children)
        for index, parent, token, logp in zip(*(column.tolist() for column in offers), strict=True):
            if parent == ROOT:
                request = requests[index]
                self.offered.setdefault((request.request_id, request.num_tokens), []).append((token, round(logp, 6)))
        return offers


def watched(target: Target, folder: Path) -> Watched:
    drafter = eagle(target, folder)
    drafter.__class__ = Watched
    assert isinstance(drafter, Watched)
    return drafter.watch()


def check_features(target: Target, folder: Path) -> None:
    """What the drafter was told is what the model computes for the final text: prompts, roots and accepted nodes."""
    drafter, requests = watched(target, folder), mixed_requests(6)
    run(eagle_loop(target, drafter, folder, gate="none"), requests)
    for request in (r for r in requests if r.params.speculation):
        told = torch.cat(drafter.told[request.request_id])
        tokens = [*request.prompt_ids, *request.output_ids][: len(told)]
        assert len(told) >= len(request.prompt_ids)
        with torch.no_grad(), plain_attention(target) as model:
            hidden = model(torch.tensor([tokens]), output_hidden_states=True, use_cache=False).hidden_states
        expected = torch.cat([hidden[layer][0] for layer in drafter.aux_layers], dim=-1)
        torch.testing.assert_close(told, expected, rtol=1e-6, atol=1e-6)
    assert any(request.stats.num_accepted for request in requests)


def test_features_are_those_of_the_committed_tokens_in_order(tmp_path: Path) -> None:
    check_features(tiny_target(), tmp_path)


def test_planted_features_of_rejected_rows_are_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the first rows of each segment, whatever was accepted."""
    right = rows_module.committed_features
    monkeypatch.setattr(
        "echo_sched.loop.decode.committed_features",
        lambda kept, packed, features: right([(r, range(len(rows))) for r, rows in kept], packed, features),
    )
    with pytest.raises(AssertionError, match="not close"):
        check_features(tiny_target(), tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_tells_its_hidden_states(family: str) -> None:
    target = tiny_target(family)
    tokens = list(random_prompt(6))
    slot = target.kv.allocate()
    tree = pack([Segment(slot, 0, tokens, range(-1, 5), 1)])
    num_layers = target.model.config.num_hidden_layers
    logits, features = target.forward_with_features(tree, (num_layers, 0, 1))
    plain_logits = target.forward(tree)
    with torch.no_grad(), plain_attention(target) as model:
        hidden = model(torch.tensor([tokens]), output_hidden_states=True, use_cache=False).hidden_states
    assert features is not None and torch.equal(logits, plain_logits)
    expected = torch.cat([hidden[i][0] for i in (num_layers, 0, 1)], dim=-1)
    torch.testing.assert_close(features, expected, rtol=1e-5, atol=1e-5)  # norms and eager softmax are float32


def test_after_a_break_it_drafts_as_if_there_had_been_none(tmp_path: Path) -> None:
    target = tiny_target()
    offered = []
    for first_draft in (0, 35):
        drafter = watched(target, tmp_path)
        loop = eagle_loop(target, drafter, tmp_path, policy="static", k_max=6, branching=3)
        on, off = loop.policy, eagle_loop(target, drafter, tmp_path, policy="off").policy
        request = Request("a", random_prompt(20), GREEDY)
        loop.add(request)
        while loop.has_work:
            loop.scheduler.policy = off if len(request.output_ids) < first_draft else on
            loop.step()
        offered.append(drafter.offered)
    both = set(offered[0]) & set(offered[1])
    assert len(both) > 15 and min(length for _, length in both) >= 20 + 35
    assert all(offered[0][key] == offered[1][key] for key in both)


def test_a_loop_that_never_drafts_asks_for_no_features(tmp_path: Path) -> None:
    target = tiny_target()
    for settings in ({"policy": "off"}, {"k_max": 0}):
        drafter = watched(target, tmp_path)
        run(eagle_loop(target, drafter, tmp_path, **settings), [Request("a", (1, 2, 3), GREEDY)])
        assert not drafter.told


def test_trees_that_grow_beyond_their_places_end_there(tmp_path: Path) -> None:
    """`dynamic` grows for free: 28 rows a step, at the end of a slot that has four places behind a full request."""
    target, outputs = tiny_target(max_model_len=60), []
    head, embeddings = eagle(target, tmp_path).head, target.model.get_input_embeddings().weight
    assert isinstance(embeddings, Tensor)
    for settings in ({"policy": "off"}, {"policy": "dynamic", "branching": 4, "max_depth": 8}):
        shape = KVShape(1, head.config.num_kv_heads, head.config.head_dim)
        kv = KVCache(shape, num_slots=4, max_len=64, dtype=torch.float64, device=target.device)
        request = Request("a", random_prompt(20), SamplingParams(max_new_tokens=40, temperature=0.0, ignore_eos=True))
        run(eagle_loop(target, Eagle3Drafter(head, embeddings, kv), tmp_path, **settings | {"k_max": 8}), [request])
        outputs.append(request.output_ids)
    assert outputs[0] == outputs[1] and request.stats.num_verified > 100


class WordTokenizer(TinyTokenizer):
    """One token per word, so that a loop can be given text."""

    chat_template = None

    def encode(self, text: str, **_: object) -> list[int]:
        return [sum(word.encode()) % VOCAB_SIZE for word in text.split()]


class AllKnowing(ScriptedDrafter):
    name = "ngram"  # so that the built-in profile is accepted


def test_a_useless_head_is_told_aloud_and_a_good_one_is_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = tiny_target()
    target._tokenizer = WordTokenizer()  # type: ignore[assignment]
    eagle_drafter = eagle(target, tmp_path)
    eagles = eagle_loop(target, eagle_drafter, tmp_path, k_max=3)
    self_check(eagles)
    assert "HARDLY EVER" in caplog.text and "--draft-aux-layers, now 0,1,2" in caplog.text
    assert eagle_drafter.kv.num_free == eagle_drafter.kv.num_slots
    caplog.clear()
    params = SamplingParams(max_new_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)
    with plain_attention(target) as model:
        answers = {
            f"self-check {number}": reference_decode(model, WordTokenizer().encode(text), params, ()).output_ids
            for number, text in enumerate(PROMPTS)
        }
    with caplog.at_level(logging.INFO):
        knowing = tiny_loop(target, AllKnowing(answers, (1.0,), VOCAB_SIZE, max_children=1))
        self_check(knowing)
    assert "HARDLY EVER" not in caplog.text and "100 %" in caplog.text
