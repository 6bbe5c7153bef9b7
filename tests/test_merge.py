"""Merged drafters: the merge against plain loops, every part's offers against what it offers alone, same tokens."""

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from echo_sched.engine.draft import Drafter
from echo_sched.engine.draft.eagle3.drafter import Eagle3Drafter
from echo_sched.engine.draft.eagle3.opening import open_eagle3
from echo_sched.engine.draft.merge import MergeDrafter, merge_offers
from echo_sched.engine.draft.ngram import MAX_NGRAM, NGramDrafter, NgramIndex
from echo_sched.engine.forward import Target
from echo_sched.loop import DecodeLoop
from echo_sched.tree import ROOT, DraftTree, Frontier, Offers
from echo_sched.types import Request, SamplingParams
from tests.loops import mixed_requests, plain_attention, references, run, tiny_loop, tiny_target
from tests.test_eagle3_drafter import EMBEDDINGS, MAX_CHILDREN, Follower, Session, make_drafter
from tests.test_eagle3_loop import WIDE, Watched
from tests.tiny_heads import ORIGINAL, TARGET_SIZE, StraightHead, head_tensors, write_head
from tests.tiny_models import random_prompt

Row = tuple[int, int, int, float]  # request, parent, token, path_logp
OTHER = ORIGINAL | {"eagle_aux_hidden_state_layer_ids": [3, 1]}  # another head, with other layers, not in order
HEADS = ((ORIGINAL, {"seed": 0}), (OTHER, {"seed": 7, "num_aux": 2}))
MERGES = ("eagle3+ngram", "eagle3+eagle3")


def offers_of(rows: Sequence[Row]) -> Offers:
    columns = tuple(zip(*rows, strict=True)) or ((), (), (), ())
    return Offers(*(np.array(column, np.int64) for column in columns[:3]), np.array(columns[3], np.float64))


def rows_of(offers: Offers) -> list[Row]:
    return list(zip(*(column.tolist() for column in offers), strict=True))


def merged_plainly(parts: Sequence[Sequence[Row]], max_children: int) -> list[Row]:
    """The slow twin of `merge_offers`: by request and parent."""
    nodes: dict[tuple[int, int], dict[int, float]] = {}
    for request, parent, token, logp in (row for part in parts for row in part):
        children = nodes.setdefault((request, parent), {})
        children[token] = max(logp, children.get(token, -math.inf))
    merged = []
    for (request, parent), children in sorted(nodes.items()):
        best = sorted(children, key=lambda token: (-children[token], token))[:max_children]
        merged += [(request, parent, token, children[token]) for token in best]
    return merged


FEW_LOGPS = st.sampled_from((-0.25, -0.5, -1.0, -4.0))  # few, so that candidates tie
PART = st.dictionaries(st.tuples(st.integers(0, 2), st.integers(ROOT, 1), st.integers(0, 5)), FEW_LOGPS)


@given(st.lists(PART, max_size=3), st.integers(1, 4))
def test_the_merge_is_that_of_plain_loops(parts: list[dict[tuple[int, int, int], float]], max_children: int) -> None:
    rows = [[(*candidate, logp) for candidate, logp in part.items()] for part in parts]
    assert rows_of(merge_offers([offers_of(part) for part in rows], max_children)) == merged_plainly(rows, max_children)


class Part:
    """Offers what it is told to, and remembers what it was told."""

    name = "part"

    def __init__(self, aux_layers: tuple[int, ...] = (), fingerprint: str | None = None, offers: Sequence[Row] = ()):
        self.aux_layers, self.fingerprint, self.offers = aux_layers, fingerprint, offers_of(offers)
        self.told: list[object] = []

    def begin(self, request: Request) -> None:
        self.told.append(("begin", request))

    def observe(self, committed: object, features: Tensor) -> None:
        self.told.append(("observe", committed, features.tolist()))

    def extend(self, requests: object) -> None:
        self.told.append(("extend", requests))

    def expand(self, requests: object, trees: object, frontier: Frontier, max_children: int) -> Offers:
        return self.offers

    def release(self, request: Request) -> None:
        self.told.append(("release", request))


def test_every_part_is_told_everything_and_its_own_hidden_states_in_its_own_order() -> None:
    parts = [Part((3, 1)), Part(), Part((2,))]
    merged, request = MergeDrafter(parts), Request("a", (1, 2), SamplingParams())
    committed = [(request, 2)]
    assert merged.aux_layers == (1, 2, 3)
    merged.begin(request)
    merged.observe(committed, torch.tensor([[10, 11, 20, 21, 30, 31], [12, 13, 22, 23, 32, 33]]))
    merged.extend([request])
    merged.release(request)
    seen = [part.told.pop(1) if part.aux_layers else None for part in parts]
    assert seen[0] == ("observe", committed, [[30, 31, 10, 11], [32, 33, 12, 13]])
    assert seen[2] == ("observe", committed, [[20, 21], [22, 23]])
    assert all(part.told == [("begin", request), ("extend", [request]), ("release", request)] for part in parts)
    merged.observe([], torch.zeros(0, 6))  # everybody has finished
    assert parts[0].told[-1] == ("observe", [], [])


def test_names_and_fingerprints_are_joined() -> None:
    assert MergeDrafter([NGramDrafter(), Part()]).name == "ngram+part"
    for prints, joined in ((("a", "b"), "a+b"), (("b", "a"), "b+a"), ((None, "a"), "a"), ((None, None), None)):
        assert MergeDrafter([Part(fingerprint=fingerprint) for fingerprint in prints]).fingerprint == joined
    assert MergeDrafter([NGramDrafter(), Part()]).aux_layers == ()


def test_a_part_without_offers_hinders_nobody() -> None:
    offers = [(0, ROOT, 5, -0.5), (0, ROOT, 3, -1.0), (1, 0, 5, -2.0)]
    frontier = Frontier(np.array([0, 1]), np.array([ROOT, 0]))
    for parts in ([Part(), Part(offers=offers)], [Part(offers=offers), Part()]):
        assert rows_of(MergeDrafter(parts).expand([], [], frontier, 4)) == offers
    assert rows_of(MergeDrafter([Part(), Part()]).expand([], [], frontier, 4)) == []


# ---- every part offers what it would alone ----

Alone = Callable[[Follower, list[int]], list[tuple[int, float]]]  # best children of the node at the end of a path


class FewTokens(random.Random):
    """Draws tokens from so few that texts repeat themselves, for the n-gram part."""

    def randrange(self, stop: int) -> int:  # type: ignore[override]
        return super().randrange(min(stop, 5))


class MergedSession(Session):
    """A merged drafter, its followers, and each part told straight."""

    def __init__(self, drafter: MergeDrafter, alone: Sequence[Alone], prompt_lens: Sequence[int] = (9, 1, 16)) -> None:
        self.drafter, self.alone, self.random = drafter, alone, FewTokens(0)
        self.followers = [
            Follower(f"r{i}", n, len(drafter.aux_layers) * TARGET_SIZE, i) for i, n in enumerate(prompt_lens)
        ]
        self.seen: Counter[str] = Counter()
        for follower in self.followers:
            drafter.begin(follower.request)

    def check(
        self, decoding: Sequence[Follower], trees: Sequence[DraftTree], frontier: list[tuple[int, int]], offers: Offers
    ) -> None:
        found = rows_of(offers)
        for index, node in frontier:
            path = trees[index].path(node)
            above = trees[index].path_logps[node] if node != ROOT else 0.0
            parts = [
                [(index, node, token, above + logp) for token, logp in children(decoding[index], path)]
                for children in self.alone
            ]
            expected, here = merged_plainly(parts, MAX_CHILDREN), [row for row in found if row[:2] == (index, node)]
            where = decoding[index].request.request_id, path
            assert [row[:3] for row in here] == [row[:3] for row in expected], where
            assert [row[3] for row in here] == pytest.approx([row[3] for row in expected], abs=1e-4)
            tokens = [{token for _, _, token, _ in part} for part in parts]
            for _, _, token, _ in here:
                self.seen[f"of {[number for number, part in enumerate(tokens) if token in part]}"] += 1
            self.seen[f"depth {len(path) + 1}"] += 1


def two_heads(folder: Path, **settings: Any) -> tuple[list[Eagle3Drafter], list[Alone]]:
    drafters, alone = [], []
    for config, making in HEADS:
        tensors = head_tensors(config, **making)
        drafters.append(make_drafter(folder / str(len(drafters)), config, tensors, **settings))
        straight = StraightHead(config, tensors, EMBEDDINGS)
        alone.append(head_alone(straight, config["eagle_aux_hidden_state_layer_ids"]))
    return drafters, alone


def head_alone(straight: StraightHead, layers: Sequence[int]) -> Alone:
    def children(follower: Follower, path: list[int]) -> list[tuple[int, float]]:
        states = follower.features.unflatten(1, (-1, TARGET_SIZE))  # of layers 0, 1, 2, ...: number and place agree
        best = torch.topk(straight.logps(states[:, layers].flatten(1), follower.tokens, path), MAX_CHILDREN)
        return [
            (straight.target_ids[token], logp)
            for token, logp in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    return children


def ngram_alone(follower: Follower, path: list[int]) -> list[tuple[int, float]]:
    index = NgramIndex(MAX_NGRAM)
    index.append(follower.tokens)
    return [(token, math.log(p)) for p, token in index.children(path, MAX_CHILDREN)]


def session(merge: str, folder: Path, **settings: Any) -> MergedSession:
    heads, alone = two_heads(folder, **settings)
    if merge == "eagle3+eagle3":
        return MergedSession(MergeDrafter(heads), alone)
    return MergedSession(MergeDrafter([heads[0], NGramDrafter()]), [alone[0], ngram_alone])


@pytest.mark.parametrize("merge", MERGES)
def test_the_offers_are_those_that_the_parts_make_alone_merged(merge: str, tmp_path: Path) -> None:
    """On every node, whoever proposed it: hidden states, committed tokens and the tree reach each part rightly."""
    run = session(merge, tmp_path)
    for step in range(16):
        run.step(draft=step % 8 not in (4, 5))
    assert run.seen["depth 3"] and run.seen["accepted 0"] and run.seen["accepted 1"]
    assert run.seen["of [0]"] and run.seen["of [1]"]


def test_while_a_head_catches_up_the_others_draft(tmp_path: Path) -> None:
    run = session("eagle3+ngram", tmp_path, max_extend_rows=6)
    for _ in range(12):
        run.step(draft=False, chunk=16)
    requests, trees = [run.followers[2].request], [DraftTree()]
    run.drafter.extend(requests)
    frontier = Frontier(np.array([0]), np.array([ROOT]))
    head, ngram = (part.expand(requests, trees, frontier, 4) for part in run.drafter.drafters)
    assert head.size == 0 and ngram.size > 0
    assert rows_of(run.drafter.expand(requests, trees, frontier, 4)) == merged_plainly([rows_of(ngram)], 4)


# ---- in the loop ----


class WatchedMerge(MergeDrafter):
    """Checks every merge against what its parts offer on the same state, and counts who continued whose nodes."""

    def watch(self) -> "WatchedMerge":
        self.seen: Counter[str] = Counter()
        return self

    def extend(self, requests: Sequence[Request]) -> None:
        self.proposers: dict[tuple[str, ...], set[int]] = {}  # request id and path -> parts that offered the last token
        super().extend(requests)

    def expand(
        self, requests: Sequence[Request], trees: Sequence[DraftTree], frontier: Frontier, max_children: int
    ) -> Offers:
        merged = super().expand(requests, trees, frontier, max_children)
        parts = [rows_of(part.expand(requests, trees, frontier, max_children)) for part in self.drafters]
        assert sorted(rows_of(merged)) == sorted(merged_plainly(parts, max_children))
        for part, rows in enumerate(parts):
            for index, parent, token, _ in rows:
                node = (requests[index].request_id, *map(str, trees[index].path(parent)))
                self.proposers.setdefault((*node, str(token)), set()).add(part)
                if parent != ROOT and part not in self.proposers[node]:
                    self.seen[f"{part} continues another's"] += 1
        return merged


def opened(merge: str, target: Target, folder: Path) -> WatchedMerge:
    heads: list[Drafter] = []
    for config, making in HEADS[: merge.count("eagle3")]:
        head = open_eagle3(write_head(folder / str(len(heads)), config, head_tensors(config, **making)), target)
        head.__class__ = Watched
        assert isinstance(head, Watched)
        heads.append(head.watch())
    return WatchedMerge([*heads, NGramDrafter()] if "ngram" in merge else heads).watch()


def heads_of(drafter: MergeDrafter) -> list[Watched]:
    return [part for part in drafter.drafters if isinstance(part, Watched)]


def merge_loop(target: Target, drafter: MergeDrafter, **settings: object) -> DecodeLoop:
    return tiny_loop(target, drafter, **{"drafter": drafter.name, **WIDE, **settings})


@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize(
    ("settings", "num_accepted"), [({"policy": "static"}, 1), ({"gate": "none"}, 6)], ids=["static", "echo"]
)
def test_tokens_are_those_of_plain_decoding(
    merge: str, settings: dict[str, Any], num_accepted: int, tmp_path: Path
) -> None:
    target = tiny_target()
    drafter, requests = opened(merge, target, tmp_path), mixed_requests(8)
    loop = merge_loop(target, drafter, **settings)
    gone = Request("gone", random_prompt(12), SamplingParams(max_new_tokens=60, ignore_eos=True))
    loop.add(gone)
    for _ in range(4):
        loop.step()
    loop.cancel("gone")
    run(loop, requests)
    for request in requests:
        expected = references("llama", 8)[request.request_id]
        assert (request.output_ids, request.finish) == (expected.output_ids, expected.finish)
    assert sum(request.stats.num_accepted for request in requests) >= num_accepted
    assert drafter.seen["0 continues another's"] and drafter.seen["1 continues another's"]
    for head in heads_of(drafter):
        head.kv.check_integrity({})
        assert head.kv.num_free == head.kv.num_slots


def test_every_head_is_told_its_own_features_of_the_committed_tokens(tmp_path: Path) -> None:
    target = tiny_target()
    drafter, requests = opened("eagle3+eagle3", target, tmp_path), mixed_requests(6)
    run(merge_loop(target, drafter, gate="none"), requests)
    for request in requests:
        for head in heads_of(drafter):
            told = torch.cat(head.told[request.request_id])
            tokens = [*request.prompt_ids, *request.output_ids][: len(told)]
            assert len(told) >= len(request.prompt_ids)
            with torch.no_grad(), plain_attention(target) as model:
                hidden = model(torch.tensor([tokens]), output_hidden_states=True, use_cache=False).hidden_states
            expected = torch.cat([hidden[layer][0] for layer in head.aux_layers], dim=-1)
            torch.testing.assert_close(told, expected, rtol=1e-6, atol=1e-6)
    assert [head.aux_layers for head in heads_of(drafter)] == [(0, 1, 2), (3, 1)]
    assert any(request.stats.num_accepted for request in requests)
