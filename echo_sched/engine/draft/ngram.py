"""Drafts from the request's own words: what followed the longest suffix of prompt + output the last times it occurred.

For suffix lengths 1..max_ngram every request keeps the tokens that followed, with counts. A node's children are the
most frequent followers of the longest suffix of its path that has any; places left are filled from shorter
suffixes, weighted by what the longer ones left unexplained (as in PPM with exclusion). Nothing matches, nothing is
offered.

Knows nothing of models: no weights, no features, and it is never stale where `extend` was called.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from echo_sched.tree import ROOT, DraftTree, Frontier, Offers
from echo_sched.types import Request

MAX_NGRAM = 4
COUNT_OFFSET = -0.25  # a: part of every count is kept back for what has not been seen
TOTAL_OFFSET = 0.25  # b: so that a single match never means certainty, (1 + a) / (1 + b) = 0.6
COINCIDENCE = 0.5  # chance, per token of the match, that it is one by accident; trust is 1 - COINCIDENCE ** length


class Followers:
    """The tokens seen after one n-gram: counts, and tokens by count (ties: most recent first)."""

    __slots__ = ("counts", "ranked", "total")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.ranked: list[int] = []
        self.total = 0

    def add(self, token: int) -> None:
        count = self.counts.get(token, 0) + 1
        self.counts[token] = count
        self.total += 1
        if count > 1:
            self.ranked.remove(token)
        place = bisect_left(self.ranked, -count, key=lambda other: -self.counts[other]) if self.ranked else 0
        self.ranked.insert(place, token)


class NgramIndex:
    """One request's tokens and the followers of every n-gram in them."""

    def __init__(self, max_ngram: int) -> None:
        self.max_ngram = max_ngram
        self.tokens: list[int] = []
        self._followers: dict[tuple[int, ...], Followers] = {}

    def append(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            context = tuple(self.tokens[-self.max_ngram :])
            for start in range(len(context)):
                followers = self._followers.get(context[start:])
                if followers is None:
                    followers = self._followers[context[start:]] = Followers()
                followers.add(token)
            self.tokens.append(token)

    def children(self, path: Sequence[int], max_children: int) -> list[tuple[float, int]]:
        """(probability, token) of the best followers of tokens ++ path, best first; distinct, summing to below 1."""
        context = (*self.tokens[-self.max_ngram :], *path)[-self.max_ngram :]
        found: dict[int, float] = {}
        unexplained = 1.0
        for start in range(len(context)):
            followers = self._followers.get(context[start:])
            if followers is None:
                continue
            trust = 1.0 - COINCIDENCE ** (len(context) - start)
            scale = unexplained * trust / (followers.total + TOTAL_OFFSET)
            for token in followers.ranked:
                if len(found) == max_children:
                    break
                if token not in found:
                    found[token] = scale * (followers.counts[token] + COUNT_OFFSET)
            unexplained -= scale * (followers.total + COUNT_OFFSET * len(followers.counts))
            if len(found) == max_children:
                break
        return sorted(((p, token) for token, p in found.items()), key=lambda child: -child[0])


class NGramDrafter:
    """The Drafter of NgramIndex, one index per request."""

    name = "ngram"
    fingerprint: str | None = None
    aux_layers: tuple[int, ...] = ()

    def __init__(self, max_ngram: int = MAX_NGRAM) -> None:
        assert max_ngram >= 1
        self.max_ngram = max_ngram
        self._indexes: dict[str, NgramIndex] = {}

    def begin(self, request: Request) -> None:
        self._indexes[request.request_id] = NgramIndex(self.max_ngram)

    def observe(self, committed: Sequence[tuple[Request, int]], features: Tensor) -> None:
        """Features say nothing to it."""

    def extend(self, requests: Sequence[Request]) -> None:
        for request in requests:
            index = self._indexes[request.request_id]
            index.append(request.tokens_from(len(index.tokens)))

    def expand(
        self, requests: Sequence[Request], trees: Sequence[DraftTree], frontier: Frontier, max_children: int
    ) -> Offers:
        """Children by the indexes as of the last `extend`; path_logp adds the log of their probability."""
        rows: list[tuple[int, int, int, float]] = []
        for request, node in zip(frontier.request.tolist(), frontier.node.tolist(), strict=True):
            index, tree = self._indexes[requests[request].request_id], trees[request]
            assert len(index.tokens) == requests[request].num_tokens, "extend comes before expand"
            path_logp = 0.0 if node == ROOT else tree.path_logps[node]
            for p, token in index.children(tree.path(node), max_children):
                rows.append((request, node, token, path_logp + math.log(p)))
        if not rows:
            return Offers.empty()
        request_column, parent, token_column, path_logp_column = zip(*rows, strict=True)
        return Offers(
            np.array(request_column, np.int64),
            np.array(parent, np.int64),
            np.array(token_column, np.int64),
            np.array(path_logp_column, np.float64),
        )

    def release(self, request: Request) -> None:
        self._indexes.pop(request.request_id, None)
