"""The n-gram drafter: what it offers, with what confidence, and that it keeps up with commits."""

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_sched.engine.draft.ngram import NGramDrafter
from echo_sched.tree import ROOT, DraftTree, Frontier, Offers
from echo_sched.types import Request, SamplingParams


def begun(prompt: Sequence[int], max_ngram: int = 4) -> tuple[NGramDrafter, Request]:
    drafter = NGramDrafter(max_ngram)
    request = Request("r", tuple(prompt), SamplingParams())
    drafter.begin(request)
    drafter.extend([request])
    return drafter, request


def expand(
    drafter: NGramDrafter, request: Request, tree: DraftTree | None = None, node: int = ROOT, max_children: int = 4
) -> Offers:
    frontier = Frontier(np.array([0]), np.array([node]))
    return drafter.expand([request], [tree or DraftTree()], frontier, max_children)


def confidence(prompt: Sequence[int]) -> float:
    return float(np.exp(expand(*begun(prompt)).path_logp.max()))


def test_offers_what_followed_the_longest_suffix_before_what_followed_shorter_ones() -> None:
    # after "1 2" came 3; after "2" alone came 9 twice
    offers = expand(*begun([1, 2, 3, 7, 2, 9, 8, 2, 9, 5, 1, 2]))
    assert set(offers.token.tolist()) == {3, 9}
    assert offers.token[0] == 3, "a longer match outranks a more frequent follower of a shorter one"


def test_frequent_followers_first_then_recent_ones() -> None:
    offers = expand(*begun([1, 4, 1, 5, 1, 5, 1, 6, 1], max_ngram=1))
    assert offers.token.tolist() == [5, 6, 4]


def test_width_is_capped_and_siblings_are_distinct() -> None:
    followers = [4, 5, 6, 7, 8, 4, 5]
    prompt = [token for follower in followers for token in (1, follower)] + [1]
    for width in range(1, 6):
        tokens = expand(*begun(prompt), max_children=width).token.tolist()
        assert len(tokens) == len(set(tokens)) == width


def test_nothing_is_offered_where_nothing_matches() -> None:
    assert expand(*begun([1, 2, 3, 4])).size == 0
    assert expand(*begun([1])).size == 0


def test_children_of_a_node_continue_its_path() -> None:
    drafter, request = begun([1, 2, 3, 4, 5, 1, 2])
    tree = DraftTree()
    first = expand(drafter, request)
    node = tree.add(ROOT, int(first.token[0]), float(first.path_logp[0]))
    second = expand(drafter, request, tree, node)
    assert (tree.tokens[0], second.token[0], second.parent[0]) == (3, 4, node)
    assert second.path_logp[0] < tree.path_logps[node], "path log-probabilities add up"
    wrong = tree.add(ROOT, 99, -1.0)
    assert expand(drafter, request, tree, wrong).size == 0


def test_confidence_rises_with_match_length_and_evidence_and_is_never_certain() -> None:
    short = confidence([1, 9, 5, 1])
    longer = confidence([1, 2, 9, 5, 1, 2])
    repeated = confidence([1, 2, 9, 1, 2, 9, 1, 2, 9, 1, 2])
    divided = confidence([1, 2, 9, 5, 1, 2, 8, 5, 1, 2])
    assert 0.0 < short < longer < repeated < 1.0
    assert longer < 0.75, "a single match must not mean certainty"
    assert divided < repeated


def test_extending_bit_by_bit_equals_indexing_at_once() -> None:
    numbers = random.Random(0)
    tokens = [numbers.randrange(5) for _ in range(120)]
    drafter, request = begun(tokens[:20])
    while request.num_tokens < len(tokens):
        count = numbers.randrange(6)  # 0: a step that committed nothing for it
        request.output_ids += tokens[request.num_tokens : request.num_tokens + count]
        drafter.extend([request])
    grown, whole = expand(drafter, request), expand(*begun(tokens))
    assert grown.size > 0
    assert all(np.array_equal(a, b) for a, b in zip(grown, whole, strict=True))


def test_requests_do_not_share_an_index_and_release_forgets() -> None:
    drafter = NGramDrafter()
    repeating = Request("a", (1, 2, 1), SamplingParams())
    plain = Request("b", (7, 8, 9), SamplingParams())
    for request in (repeating, plain):
        drafter.begin(request)
        drafter.extend([request])
    trees = [DraftTree(), DraftTree()]
    offers = drafter.expand([plain, repeating], trees, Frontier(np.array([0, 1]), np.array([ROOT, ROOT])), 4)
    assert (offers.request.tolist(), offers.token.tolist()) == ([1], [2])
    drafter.release(repeating)
    again = Request("a", (3, 4, 5), SamplingParams())
    drafter.begin(again)
    drafter.extend([again])
    assert drafter.expand([again], trees[:1], Frontier(np.array([0]), np.array([ROOT])), 4).size == 0


def test_drafting_on_a_stale_index_is_refused() -> None:
    drafter, request = begun([1, 2, 1])
    request.output_ids.append(2)
    with pytest.raises(AssertionError, match="extend"):
        expand(drafter, request)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.integers(1, 6), st.integers(1, 5))
def test_offers_are_a_sub_distribution_best_first(tokens: list[int], max_children: int, max_ngram: int) -> None:
    offers = expand(*begun(tokens, max_ngram), max_children=max_children)
    assert len(set(offers.token.tolist())) == offers.size <= max_children
    assert offers.path_logp.tolist() == sorted(offers.path_logp.tolist(), reverse=True)
    assert math.fsum(np.exp(offers.path_logp)) < 1.0
    if tokens[-1] in tokens[:-1]:
        assert offers.size > 0
