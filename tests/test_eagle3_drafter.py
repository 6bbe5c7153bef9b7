"""The EAGLE-3 drafter against a head that recomputes everything, whatever was accepted, rejected or skipped before."""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from echo_sched.engine.draft.eagle3 import TargetShape, load_head
from echo_sched.engine.draft.eagle3.drafter import Eagle3Drafter
from echo_sched.engine.kernels import whole_rows
from echo_sched.engine.kv import KVCache, KVShape
from echo_sched.tree import ROOT, DraftTree, Frontier, Offers
from echo_sched.types import Request, SamplingParams
from tests.tiny_heads import (
    LAYER,
    NUM_TARGET_LAYERS,
    ORIGINAL,
    SPECULATORS,
    TARGET_SIZE,
    StraightHead,
    Tensors,
    head_tensors,
    write_head,
)
from tests.tiny_models import VOCAB_SIZE, random_prompt

CPU = torch.device("cpu")
SHAPE = TargetShape(NUM_TARGET_LAYERS, TARGET_SIZE, VOCAB_SIZE)
EMBEDDINGS = torch.randn(VOCAB_SIZE, TARGET_SIZE, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
MAX_CHILDREN = 3

NARROW = LAYER | {"hidden_size": 32, "target_hidden_size": TARGET_SIZE}
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "original": (ORIGINAL, {}),
    "speculators": (SPECULATORS, {}),
    "norm before fc, bias": (ORIGINAL | {"norm_before_fc": True, "attention_bias": True}, {}),
    "narrow, own embeddings": (ORIGINAL | NARROW, {"own_embeddings": True}),
    "two hidden states": (ORIGINAL | {"eagle_aux_hidden_state_layer_ids": [1, 3]}, {"num_aux": 2}),
    "the final state alone": (ORIGINAL | {"eagle_aux_hidden_state_layer_ids": [3]}, {"num_aux": 1}),
    "the final state, no fc": (ORIGINAL | {"eagle_aux_hidden_state_layer_ids": [3]}, {"num_aux": 0}),
}


def make_drafter(
    folder: Path, config: dict[str, Any], tensors: Tensors, *, kv_class: type[KVCache] = KVCache, **settings: int
) -> Eagle3Drafter:
    head = load_head(write_head(folder, config, tensors), SHAPE, dtype=torch.float64)
    kv = KVCache if kv_class is None else kv_class
    shape = KVShape(1, head.config.num_kv_heads, head.config.head_dim)
    return Eagle3Drafter(
        head, EMBEDDINGS, kv(shape, num_slots=4, max_len=128, dtype=torch.float64, device=CPU), **settings
    )


class Follower:
    """One request, with made-up target features; plays the loop's and the target's part."""

    def __init__(self, name: str, prompt_len: int, width: int, seed: int) -> None:
        self.request = Request(name, random_prompt(prompt_len, seed), SamplingParams(max_new_tokens=100))
        self.numbers = torch.Generator().manual_seed(seed)
        self.features = torch.zeros(0, width, dtype=torch.float64)

    @property
    def tokens(self) -> list[int]:
        return [*self.request.prompt_ids, *self.request.output_ids]

    def compute(self, count: int) -> tuple[Request, int]:
        """The target computes the next `count` tokens."""
        new = torch.randn(count, self.features.shape[1], generator=self.numbers, dtype=torch.float64)
        self.features = torch.cat([self.features, new])
        return self.request, count

    def emit(self, tokens: Sequence[int]) -> None:
        self.request.output_ids += tokens


class Session:
    """A drafter, its followers and the straight head, step after step."""

    def __init__(
        self, drafter: Eagle3Drafter, straight: StraightHead, prompt_lens: Sequence[int], seed: int = 0
    ) -> None:
        self.drafter, self.straight, self.random = drafter, straight, random.Random(seed)
        width = drafter.head.config.feature_size
        self.followers = [Follower(f"r{i}", n, width, i + 10 * seed) for i, n in enumerate(prompt_lens)]
        self.seen: Counter[str] = Counter()
        for follower in self.followers:
            drafter.begin(follower.request)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step(draft=True)

    def step(self, *, draft: bool, chunk: int = 5) -> None:
        """Draft trees for those who decode, accept a random path of each, compute a chunk of the others' prompts."""
        decoding = [f for f in self.followers if f.request.output_ids]
        trees = self.grow(decoding) if draft and decoding else [DraftTree() for _ in decoding]
        committed = []
        for follower, tree in zip(decoding, trees, strict=True):
            tokens = self.accepted(tree)
            committed.append(follower.compute(1 + len(tokens)))
            follower.emit([*tokens, self.random.randrange(VOCAB_SIZE)])
            self.seen[f"accepted {len(tokens)}"] += 1
        for follower in self.followers:
            missing = len(follower.request.prompt_ids) - len(follower.features)
            if missing > 0:
                committed.append(follower.compute(min(chunk, missing)))
                if missing <= chunk:
                    follower.emit([self.random.randrange(VOCAB_SIZE)])
        if self.drafter.aux_layers:
            by_name = {f.request.request_id: f for f in self.followers}
            rows = [by_name[request.request_id].features[-count:] for request, count in committed]
            self.drafter.observe(committed, torch.cat(rows))

    def accepted(self, tree: DraftTree) -> list[int]:
        node, tokens = ROOT, []
        while children := [i for i, parent in enumerate(tree.parents) if parent == node]:
            if self.random.random() < 0.3:
                break
            node = self.random.choice(children)
            tokens.append(tree.tokens[node])
        return tokens

    def grow(self, decoding: Sequence[Follower]) -> list[DraftTree]:
        """Random parts of what is offered, three levels deep; every offer is checked."""
        requests = [f.request for f in decoding]
        trees = [DraftTree() for _ in requests]
        self.drafter.extend(requests)
        frontier = [(index, ROOT) for index in range(len(requests))]
        for _ in range(3):
            columns = np.array(frontier, np.int64).reshape(-1, 2)
            offers = self.drafter.expand(requests, trees, Frontier(columns[:, 0], columns[:, 1]), MAX_CHILDREN)
            self.check(decoding, trees, frontier, offers)
            frontier = []
            for index, parent, token, logp in zip(*(column.tolist() for column in offers), strict=True):
                if self.random.random() < 0.6:
                    node = trees[index].add(parent, token, logp)
                    if self.random.random() < 0.7:
                        frontier.append((index, node))
        return trees

    def check(
        self, decoding: Sequence[Follower], trees: Sequence[DraftTree], frontier: list[tuple[int, int]], offers: Offers
    ) -> None:
        rows = list(zip(*(column.tolist() for column in offers), strict=True))
        for index, node in frontier:
            follower, tree = decoding[index], trees[index]
            logps = self.straight.logps(follower.features, follower.tokens, tree.path(node))
            best = torch.topk(logps, MAX_CHILDREN)
            expected = [self.straight.target_ids[token] for token in best.indices.tolist()]
            found = [(token, logp) for i, parent, token, logp in rows if (i, parent) == (index, node)]
            assert [token for token, _ in found] == expected, (follower.request.request_id, node)
            above = tree.path_logps[node] if node != ROOT else 0.0
            assert [logp for _, logp in found] == pytest.approx((best.values + above).tolist(), abs=1e-4)
            self.seen[f"depth {len(tree.path(node)) + 1}"] += 1


def session(
    folder: Path,
    variant: str = "original",
    *,
    seed: int = 0,
    prompt_lens: tuple[int, ...] = (9, 1, 24),
    **settings: Any,
) -> Session:
    config, making = VARIANTS[variant]
    tensors = head_tensors(config, **making)
    drafter = make_drafter(folder, config, tensors, **settings)
    return Session(drafter, StraightHead(config, tensors, EMBEDDINGS), prompt_lens, seed)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_offer_is_what_a_full_recomputation_gives(variant: str, tmp_path: Path) -> None:
    run = session(tmp_path, variant)
    run.steps(6 if variant != "original" else 10)
    assert run.seen["depth 1"] and run.seen["depth 2"] and run.seen["depth 3"]
    assert run.seen["accepted 0"] and run.seen["accepted 1"]


def test_no_product_has_another_row_count_than_few(tmp_path: Path) -> None:
    run, seen = session(tmp_path, prompt_lens=(24, 40, 57, 33)), set()
    for module in run.drafter.head.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(lambda _, args: seen.add(args[0].numel() // args[0].shape[-1]))
    for step in range(20):
        run.step(draft=step > 12)
    assert max(seen) > 16 and seen <= {len(whole_rows(torch.zeros(count))) for count in range(1, 300)}


def test_skipped_steps_are_caught_up_exactly(tmp_path: Path) -> None:
    run = session(tmp_path, seed=1)
    for step in range(24):
        run.step(draft=step % 8 in (6, 7))
    assert run.seen["depth 2"]


def test_whoever_is_far_behind_drafts_nothing_until_it_has_caught_up(tmp_path: Path) -> None:
    """Six pairs a step: the request that is one step behind is served first, the long prompt takes what is left."""
    run = session(tmp_path, prompt_lens=(9, 1, 16), max_extend_rows=6)
    first, _, last = run.followers
    for _ in range(4):
        run.step(draft=False, chunk=16)
    requests, trees = [first.request, last.request], [DraftTree(), DraftTree()]
    offered: list[set[int]] = []
    for _ in range(7):
        run.drafter.extend(requests)
        offers = run.drafter.expand(requests, trees, Frontier(np.array([0, 1]), np.array([ROOT, ROOT])), MAX_CHILDREN)
        offered.append(set(offers.request.tolist()))
    assert offered == [set(), {0}, {0}, {0}, {0}, {0, 1}, {0, 1}]
    run.check([first, last], trees, [(0, ROOT), (1, ROOT)], offers)


def test_slots_come_back_and_plain_requests_take_none(tmp_path: Path) -> None:
    run = session(tmp_path)
    plain = Request("plain", (1, 2), SamplingParams(speculation=False))
    run.drafter.begin(plain)
    assert run.drafter.kv.num_free == 1
    run.drafter.observe([(plain, 2)], torch.zeros(2, run.drafter.head.config.feature_size, dtype=torch.float64))
    for request in (plain, *(follower.request for follower in run.followers)):
        run.drafter.release(request)
    assert run.drafter.kv.num_free == run.drafter.kv.num_slots


def test_features_that_wait_keep_no_others_alive(tmp_path: Path) -> None:
    """Steps without drafting may be many: one request's wait must not hold the rows of every step's whole batch."""
    drafter = session(tmp_path).drafter
    draft = drafter._drafts["r0"]
    features = torch.zeros(64, drafter.head.config.feature_size, dtype=torch.float64)
    request = Request("r0", (1, 2), SamplingParams())
    drafter.observe([(request, 1), (Request("gone", (1,), SamplingParams()), 63)], features)
    (waiting,) = draft.pending
    assert waiting.untyped_storage().nbytes() == waiting.nbytes


class KeepsTreeRows(KVCache):
    """Planted: places behind the pairs that a tree has written are not overwritten by true pairs later."""

    def append(self, layer: int, slot: Tensor, index: Tensor, key: Tensor, value: Tensor) -> None:
        written = self.__dict__.setdefault("written", set())
        places = list(zip(slot.tolist(), index.tolist(), strict=True))
        new = torch.tensor([place not in written for place in places])
        written.update(places)
        super().append(layer, slot[new], index[new], key[new], value[new])


def test_planted_stale_kv_is_caught(tmp_path: Path) -> None:
    run = session(tmp_path, kv_class=KeepsTreeRows)
    with pytest.raises(AssertionError, match=r"r\d"):
        run.steps(14)


def test_planted_features_of_the_wrong_rows_are_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Eagle3Drafter.observe
    monkeypatch.setattr(Eagle3Drafter, "observe", lambda self, kept, rows: right(self, kept, rows.roll(1, 0)))
    run = session(tmp_path)
    with pytest.raises(AssertionError, match=r"r\d"):
        run.steps(6)
