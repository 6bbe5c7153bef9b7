"""The lm drafter against its model recomputed from scratch, whatever was accepted, rejected or skipped before; and in
the loop: the same tokens, whole chains accepted where both models are one, no slot lost."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from echo_sched.engine.draft import Drafter
from echo_sched.engine.draft.lm.drafter import LMDrafter
from echo_sched.engine.draft.merge import MergeDrafter
from echo_sched.engine.draft.ngram import NGramDrafter
from echo_sched.engine.kv import KVCache
from echo_sched.loop import DecodeLoop
from echo_sched.tree import ROOT, DraftTree, Frontier, Offers, Segment, pack
from echo_sched.types import Request, SamplingParams
from tests.loops import mixed_requests, plain_attention, references, run, tiny_loop, tiny_target
from tests.test_eagle3_drafter import MAX_CHILDREN, Follower, KeepsTreeRows, Session
from tests.test_merge import MergedSession, ngram_alone, rows_of
from tests.tiny_drafts import RELATED, STRANGER, lm_drafter
from tests.tiny_models import VOCAB_SIZE, random_prompt

SMALL_VOCAB = 150
POLICIES: dict[str, dict[str, Any]] = {
    "static": {"policy": "static"},
    "dynamic": {"policy": "dynamic"},
    "echo": {"gate": "none"},
}


class CountsMoves(KVCache):
    """Knows how many tokens were kept at another place than they were written at."""

    num_moved = 0

    def commit(self, kept: Sequence[tuple[int, Sequence[int]]]) -> int:
        moved = super().commit(kept)
        self.num_moved += moved
        return moved


def straight_logps(drafter: LMDrafter, tokens: Sequence[int], shared: int) -> Tensor:
    """[shared] what the model says after these tokens: no cache, nothing packed, transformers' own attention."""
    with torch.no_grad(), plain_attention(drafter.model) as model:
        logits = model(torch.tensor([list(tokens)]), use_cache=False).logits[0, -1, :shared]
    return torch.log_softmax(logits, -1)


class LMSession(Session):
    """A drafter and its followers, step after step; what it offers is compared with the straight computation."""

    def __init__(self, drafter: LMDrafter, *, shared: int = VOCAB_SIZE, seed: int = 0) -> None:
        self.drafter, self.shared, self.random = drafter, shared, random.Random(seed)
        self.followers = [Follower(f"r{i}", n, 0, i + 10 * seed) for i, n in enumerate((9, 1, 16))]
        self.seen: Counter[str] = Counter()
        for follower in self.followers:
            drafter.begin(follower.request)

    def check(
        self, decoding: Sequence[Follower], trees: Sequence[DraftTree], frontier: list[tuple[int, int]], offers: Offers
    ) -> None:
        for index, node in frontier:
            path = trees[index].path(node)
            best = torch.topk(straight_logps(self.drafter, decoding[index].tokens + path, self.shared), MAX_CHILDREN)
            above = trees[index].path_logps[node] if node != ROOT else 0.0
            found = [row for row in rows_of(offers) if row[:2] == (index, node)]
            where = decoding[index].request.request_id, path
            assert [row[2] for row in found] == best.indices.tolist(), where
            assert [row[3] for row in found] == pytest.approx((best.values + above).tolist(), abs=1e-4), where
            self.seen[f"depth {len(path) + 1}"] += 1


def chain(*tokens: int) -> DraftTree:
    tree = DraftTree()
    for node, token in enumerate(tokens):
        tree.add(node - 1, token, -1.0)
    return tree


def offered_below(drafter: LMDrafter, requests: Sequence[Request], trees: Sequence[DraftTree]) -> set[tuple[int, int]]:
    """(request, node) pairs with offers when every level of these trees is expanded in turn."""
    for request in requests:
        drafter.begin(request)
    drafter.extend(requests)
    found: set[tuple[int, int]] = set()
    for node in range(ROOT, max(map(len, trees))):
        has_node = [index for index, tree in enumerate(trees) if node < len(tree)]
        frontier = Frontier(np.array(has_node), np.full(len(has_node), node))
        offers = drafter.expand(requests, trees, frontier, MAX_CHILDREN)
        found |= set(zip(offers.request.tolist(), offers.parent.tolist(), strict=True))
    return found


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
def test_every_offer_is_what_a_full_recomputation_gives(family: str) -> None:
    """So no KV is stale, and none that was kept is at a wrong place; Mistral's window is shorter than the texts."""
    session = LMSession(lm_drafter(family, seed=STRANGER, kv_class=CountsMoves))
    session.steps(14)
    assert all(session.seen[f"depth {depth}"] for depth in (1, 2, 3))
    assert all(session.seen[f"accepted {count}"] for count in (0, 1, 2))
    assert session.drafter.kv.num_moved > 0


def test_skipped_steps_are_caught_up_exactly() -> None:
    session = LMSession(lm_drafter(seed=STRANGER, kv_class=CountsMoves), seed=1)
    for step in range(32):
        session.step(draft=step % 8 in (5, 6))
    assert session.seen["depth 3"] and session.drafter.kv.num_moved > 0


def test_the_kept_kv_is_that_of_the_committed_tokens() -> None:
    session = LMSession(lm_drafter(seed=STRANGER))
    session.steps(12)
    again = lm_drafter(seed=STRANGER)
    for slot, follower in enumerate(session.followers):
        length = session.drafter.kv.length(slot)
        assert len(follower.request.prompt_ids) < length < len(follower.tokens)
        fresh = again.kv.allocate()
        again.model.forward(pack([Segment(fresh, 0, follower.tokens[:length], range(-1, length - 1), 0)]))
        for layer in range(again.kv.shape.num_layers):
            views = (drafter.kv.view(layer, slot, slot + 1, length) for drafter in (session.drafter, again))
            for kept, expected in zip(*views, strict=True):
                torch.testing.assert_close(kept, expected, rtol=1e-9, atol=1e-9)


class StaysPut(KVCache):
    """Planted: the right number of rows is kept, but the first ones."""

    def commit(self, kept: Sequence[tuple[int, Sequence[int]]]) -> int:
        return super().commit([(slot, range(len(rows))) for slot, rows in kept])


@pytest.mark.parametrize("planted", [StaysPut, KeepsTreeRows])
def test_planted_stale_kv_is_caught(planted: type[KVCache]) -> None:
    session = LMSession(lm_drafter(seed=STRANGER, kv_class=planted))
    with pytest.raises(AssertionError, match=r"r\d"):
        session.steps(14)


def test_a_row_that_comes_out_as_the_last_token_is_read_again() -> None:
    """A node may be dropped before verification, and its token emitted all the same: what follows it must be known."""
    drafter, request = lm_drafter(seed=STRANGER), Request("r0", random_prompt(9), SamplingParams(), [5])
    assert offered_below(drafter, [request], [chain(7, 8)]) == {(0, ROOT), (0, 0), (0, 1)}
    request.output_ids += [7, 8]
    drafter.extend([request])
    offers = drafter.expand([request], [DraftTree()], Frontier(np.array([0]), np.array([ROOT])), MAX_CHILDREN)
    best = torch.topk(straight_logps(drafter, request.tokens_from(0), VOCAB_SIZE), MAX_CHILDREN)
    assert offers.token.tolist() == best.indices.tolist()
    assert offers.path_logp == pytest.approx(best.values.numpy(), abs=1e-4)


def test_whoever_is_far_behind_drafts_nothing_until_it_has_caught_up() -> None:
    """Six tokens a step: the request that is one step behind is served first, the long prompt takes what is left."""
    session = LMSession(lm_drafter(seed=STRANGER, max_extend_rows=6))
    first, _, last = session.followers
    for _ in range(4):
        session.step(draft=False, chunk=16)
    requests, trees = [first.request, last.request], [DraftTree(), DraftTree()]
    root = Frontier(np.array([0, 1]), np.array([ROOT, ROOT]))
    offered = []
    for _ in range(7):
        session.drafter.extend(requests)
        offers = session.drafter.expand(requests, trees, root, MAX_CHILDREN)
        offered.append(set(offers.request.tolist()))
    assert offered == [set(), set(), {0}, {0}, {0}, {0, 1}, {0, 1}]
    session.check([first, last], trees, [(0, ROOT), (1, ROOT)], offers)


def test_slots_come_back_and_plain_requests_take_none() -> None:
    session = LMSession(lm_drafter())
    plain = Request("plain", (1, 2), SamplingParams(speculation=False))
    session.drafter.begin(plain)
    assert session.drafter.kv.num_free == 1
    for request in (plain, *(follower.request for follower in session.followers)):
        session.drafter.release(request)
    session.drafter.kv.check_integrity({})


# ---- what the draft model cannot read ----


@pytest.mark.parametrize("vocab_size", [SMALL_VOCAB, VOCAB_SIZE + 20])
def test_only_shared_tokens_are_offered_with_their_own_probabilities(vocab_size: int) -> None:
    shared = min(vocab_size, VOCAB_SIZE)
    session = LMSession(lm_drafter(seed=STRANGER, vocab_size=vocab_size), shared=shared)
    known = [follower for follower in session.followers if max(follower.tokens) < shared]
    for follower in known:
        follower.emit([5])
    assert known
    drafter, requests, trees = session.drafter, [f.request for f in known], [DraftTree() for _ in known]
    drafter.extend(requests)
    roots = [(index, ROOT) for index in range(len(known))]
    columns = np.array(roots).T
    session.check(known, trees, roots, drafter.expand(requests, trees, Frontier(*columns), MAX_CHILDREN))
    everything = drafter.expand(requests, trees, Frontier(*columns), 10 * VOCAB_SIZE)
    assert everything.size == shared * len(known) and everything.token.max() < shared


def test_a_text_with_a_token_that_the_model_lacks_is_left_to_others() -> None:
    drafter, params = lm_drafter(vocab_size=SMALL_VOCAB), SamplingParams()
    requests = [Request("a", (3, 4), params, [5]), Request("b", (3, SMALL_VOCAB), params, [5])]
    trees = [chain(7, SMALL_VOCAB, 8), chain(7)]
    assert offered_below(drafter, requests, trees) == {(0, ROOT), (0, 0)}  # nothing below the unknown node either
    requests[0].output_ids += [7, SMALL_VOCAB]
    drafter.extend(requests)
    for index in (0, 1):
        assert drafter.expand(requests, trees, Frontier(np.array([index]), np.array([ROOT])), 4).size == 0


def test_nothing_is_drafted_beyond_the_draft_models_context() -> None:
    requests = [Request(str(n), random_prompt(n - 1), SamplingParams(), [5]) for n in (38, 40, 41)]
    trees = [chain(1, 2, 3, 4) for _ in requests]
    found = offered_below(lm_drafter(max_len=40), requests, trees)
    assert found == {(0, ROOT), (0, 0), (0, 1), (1, ROOT)}


# ---- in the loop ----


def lm_loop(target: Any, drafter: Drafter, **settings: object) -> DecodeLoop:
    return tiny_loop(target, drafter, **{"drafter": drafter.name, **settings})


def check_tokens(requests: Sequence[Request]) -> int:
    """They are those of plain decoding. Returns how many draft nodes were accepted."""
    for request in requests:
        expected = references("llama", 8)[request.request_id]
        assert (request.output_ids, request.finish) == (expected.output_ids, expected.finish)
    return sum(request.stats.num_accepted for request in requests)


@pytest.mark.parametrize(("batch", "coupled"), [(1, False), (4, False), (4, True)])
@pytest.mark.parametrize("policy", POLICIES)
def test_tokens_are_those_of_plain_decoding(policy: str, batch: int, coupled: bool) -> None:
    target, requests = tiny_target(num_slots=batch), mixed_requests(8)
    drafter = lm_drafter(noise=RELATED, num_slots=batch, kv_class=CountsMoves, coupled=coupled)
    run(lm_loop(target, drafter, max_batch_size=batch, **POLICIES[policy]), requests)
    assert check_tokens(requests) > 20
    assert drafter.kv.num_moved > 0  # later siblings were accepted
    assert any(max(request.stats.accepted_lengths) >= 3 for request in requests)
    drafter.kv.check_integrity({})


def test_coupled_drafts_are_accepted_more_often() -> None:
    accepted, outputs = [], []
    for coupled in (False, True):
        params = [SamplingParams(max_new_tokens=60, temperature=1.0, seed=seed, ignore_eos=True) for seed in range(4)]
        requests = [Request(f"r{i}", random_prompt(9, seed=i), param) for i, param in enumerate(params)]
        settings = {"policy": "static", "branching": 1, "max_depth": 3, "k_max": 12}
        run(lm_loop(tiny_target(), lm_drafter(noise=RELATED, coupled=coupled), **settings), requests)
        accepted.append(sum(request.stats.num_accepted for request in requests))
        outputs.append([request.output_ids for request in requests])
    assert outputs[0] == outputs[1]
    assert accepted[1] > 1.1 * accepted[0]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_draft_model_that_is_the_target_has_whole_chains_accepted(policy: str) -> None:
    params = SamplingParams(max_new_tokens=43, temperature=0.0, ignore_eos=True)
    requests = [Request(f"r{i}", random_prompt(11 + i, seed=i), params) for i in range(3)]
    settings = {"branching": 1, "max_depth": 5, "k_max": 15} | POLICIES[policy]
    run(lm_loop(tiny_target(), lm_drafter(), **settings), requests)
    for request in requests:
        # The first token comes from the prompt; seven chains of five nodes and a bonus make the other 42.
        assert dict(request.stats.accepted_lengths) == {5: 7}
        assert request.stats.num_verified == request.stats.num_accepted == 35


def test_slots_follow_the_running_requests_through_cancellations() -> None:
    target, drafter, requests = tiny_target(), lm_drafter(noise=RELATED), mixed_requests(8)
    loop, numbers = lm_loop(target, drafter, gate="none"), random.Random(0)
    gone = [Request(f"gone{i}", random_prompt(5 + 9 * i), SamplingParams(max_new_tokens=60)) for i in range(6)]
    for pair in zip(gone, requests, strict=False):
        for request in pair:
            loop.add(request)
    for request in requests[len(gone) :]:
        loop.add(request)
    while loop.has_work:
        if gone and numbers.random() < 0.3:
            loop.cancel(gone.pop(numbers.randrange(len(gone))).request_id)
        loop.step()
        speculating = [request for request in loop.requests.running if request.params.speculation]
        assert drafter.kv.num_slots - drafter.kv.num_free == len(speculating)
    check_tokens(requests)
    drafter.kv.check_integrity({})


def test_after_a_break_it_drafts_as_if_there_had_been_none() -> None:
    """A chain of the target's own choices is accepted whole in the first step after the break."""
    drafter = lm_drafter()
    loop = lm_loop(tiny_target(), drafter, policy="static", branching=1, max_depth=4, k_max=4)
    on, off = loop.policy, lm_loop(loop.target, drafter, policy="off").policy
    request = Request("a", random_prompt(20), SamplingParams(max_new_tokens=90, temperature=0.0, ignore_eos=True))
    loop.add(request)
    while loop.has_work:
        loop.scheduler.policy = on if len(request.output_ids) // 20 % 2 else off
        loop.step()
    assert set(request.stats.accepted_lengths) <= {0, 1, 2, 3, 4}
    assert request.stats.num_accepted == request.stats.num_verified > 20


@pytest.mark.parametrize("settings", [{"max_len": 40}, {"vocab_size": SMALL_VOCAB}, {"vocab_size": VOCAB_SIZE + 20}])
@pytest.mark.parametrize("merged", [False, True])
def test_a_narrow_draft_model_changes_no_token(settings: dict[str, int], merged: bool) -> None:
    lm, requests = lm_drafter(noise=RELATED, **settings), mixed_requests(8)
    drafter = MergeDrafter([lm, NGramDrafter()]) if merged else lm
    run(lm_loop(tiny_target(), drafter, gate="none"), requests)
    assert check_tokens(requests) > 0
    lm.kv.check_integrity({})


def test_trees_that_grow_beyond_their_places_end_there() -> None:
    """`dynamic` grows for free: 28 rows a step, at the end of a slot that has four places behind a full request."""
    params = SamplingParams(max_new_tokens=40, temperature=0.0, ignore_eos=True)
    outputs = []
    for settings in ({"policy": "off"}, {"policy": "dynamic", "max_depth": 8, "branching": 4}):
        request = Request("a", random_prompt(20), params)
        drafter = lm_drafter(noise=RELATED, max_len=60, tail_len=4)
        run(lm_loop(tiny_target(max_model_len=60), drafter, k_max=8, **settings), [request])
        outputs.append(request.output_ids)
    assert outputs[0] == outputs[1] and request.stats.num_accepted > 0


# ---- merged ----


def lm_alone(drafter: LMDrafter) -> Callable[[Follower, list[int]], list[tuple[int, float]]]:
    def children(follower: Follower, path: list[int]) -> list[tuple[int, float]]:
        best = torch.topk(straight_logps(drafter, follower.tokens + path, VOCAB_SIZE), MAX_CHILDREN)
        return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))

    return children


def test_merged_it_goes_on_from_what_others_propose() -> None:
    lm = lm_drafter(seed=STRANGER)
    session = MergedSession(MergeDrafter([lm, NGramDrafter()]), [lm_alone(lm), ngram_alone])
    for step in range(16):
        session.step(draft=step % 8 not in (4, 5))
    assert session.seen["depth 3"] and session.seen["accepted 1"]
    assert session.seen["of [0]"] and session.seen["of [1]"]


@pytest.mark.parametrize("policy", POLICIES)
def test_merged_tokens_are_those_of_plain_decoding(policy: str) -> None:
    lm, requests = lm_drafter(noise=RELATED), mixed_requests(8)
    drafter = MergeDrafter([lm, NGramDrafter()])
    run(lm_loop(tiny_target(), drafter, **POLICIES[policy]), requests)
    assert check_tokens(requests) > 20
    lm.kv.check_integrity({})
