"""Tree algebra on flat arrays: one request's draft tree, and the packing of all trees of a step.

A draft tree is a list of nodes in the order they were granted. Node indices are local to the tree; `ROOT` (-1) stands
for the root, which is no draft node. Parents always precede their children.

Packed rows of one step (one request's rows are contiguous; row 0 of a decoding request is its root):

    rows      [ root a | nodes of a ............ | root b | nodes of b | prompt chunk of c ......... ]
    kind        tree                               tree                  chain (accepted by definition)

Knows nothing of tensors, caches or policies.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ROOT = -1

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


class Offers(NamedTuple):
    """Candidate nodes, flat over requests. All arrays [C]; `request` indexes the step's decoding requests.

    Siblings (same request and parent) carry distinct tokens. `path_logp` is S: the sum of the drafter's
    log-probabilities from the root's child down to this candidate.
    """

    request: IntArray
    parent: IntArray  # node index in the request's tree, or ROOT
    token: IntArray
    path_logp: FloatArray

    def take(self, rows: IntArray | BoolArray) -> "Offers":
        return Offers(self.request[rows], self.parent[rows], self.token[rows], self.path_logp[rows])

    @property
    def size(self) -> int:
        return len(self.request)

    @staticmethod
    def empty() -> "Offers":
        none = np.zeros(0, np.int64)
        return Offers(none, none, none, np.zeros(0, np.float64))

    @staticmethod
    def concat(parts: Sequence["Offers"]) -> "Offers":
        if not parts:
            return Offers.empty()
        return Offers(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


class Frontier(NamedTuple):
    """Nodes whose children are wanted next. Arrays [F]; `node` may be ROOT."""

    request: IntArray
    node: IntArray


@dataclass
class DraftTree:
    """One request's draft nodes in grant order."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    path_logps: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, parent: int, token: int, path_logp: float) -> int:
        """Append a node below `parent` (or ROOT) and return its index."""
        assert ROOT <= parent < len(self.tokens), "parents precede children"
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(1 if parent == ROOT else self.depths[parent] + 1)
        self.path_logps.append(path_logp)
        return len(self.tokens) - 1

    def keep(self, nodes: Sequence[int]) -> "DraftTree":
        """The tree of `nodes` alone, ascending and with every parent among them, numbered anew in that order."""
        number = {node: index for index, node in enumerate(nodes)} | {ROOT: ROOT}
        return DraftTree(
            tokens=[self.tokens[node] for node in nodes],
            parents=[number[self.parents[node]] for node in nodes],
            depths=[self.depths[node] for node in nodes],
            path_logps=[self.path_logps[node] for node in nodes],
        )

    def path(self, node: int) -> list[int]:
        """Tokens from the root's child down to `node`; empty for ROOT."""
        tokens = []
        while node != ROOT:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tokens[::-1]

    def child(self, node: int, token: int) -> int | None:
        """The child of `node` (or ROOT) that carries `token`, if any."""
        for index, (parent, candidate) in enumerate(zip(self.parents, self.tokens, strict=True)):
            if parent == node and candidate == token:
                return index
        return None


class Segment(NamedTuple):
    """One request's rows in a forward. `parents` are row offsets in the segment, -1 for a row that follows the prefix.

    A tree may be computed over several forwards, level by level. `tail` then holds the parents of its earlier rows,
    which wait behind the prefix and are not computed again; offsets count them first:

        [0, base_len) prefix   [base_len, + len(tail)) tail, offsets 0 ...   rows of this forward, offsets len(tail) ...
    """

    slot: int
    base_len: int  # tokens of this request that are committed before the step
    tokens: Sequence[int]
    parents: Sequence[int]
    num_logit_rows: int  # how many of its last rows need logits
    tail: Sequence[int] = ()


class SuperTree(NamedTuple):
    """All rows of one forward, packed. N rows, B segments, R logit rows."""

    token: IntArray  # [N]
    parent: IntArray  # [N] offset in the row's segment, its tail counted first; -1 where the parent is committed
    depth: IntArray  # [N] rows between this one and the prefix
    position: IntArray  # [N] absolute position = base_len + depth
    segment: IntArray  # [N]
    slot: IntArray  # [B]
    base_len: IntArray  # [B]
    tail: tuple[IntArray, ...]  # [B] parents of the rows that wait behind each prefix
    start: IntArray  # [B + 1] first row of each segment
    logit_row: IntArray  # [R] packed rows whose logits are wanted, ascending
    logit_start: IntArray  # [B + 1] first logit row of each segment

    @property
    def num_rows(self) -> int:
        return len(self.token)

    @property
    def first_index(self) -> IntArray:
        """[B] where each segment's first new row goes in its slot: behind prefix and tail."""
        return self.base_len + np.array([len(tail) for tail in self.tail], np.int64)

    def local_parents(self, segment: int) -> IntArray:
        """Parents of the segment's tail and then its new rows, as offsets; -1 where the parent is committed."""
        return np.concatenate([self.tail[segment], self.parent[self.start[segment] : self.start[segment + 1]]])


def depths_of(parents: Sequence[int] | IntArray) -> IntArray:
    """Distance of each row from the cache, given parents [n] that precede their children."""
    return np.array(_depths(parents), np.int64)


def _depths(parents: Sequence[int] | IntArray) -> list[int]:
    depths: list[int] = []
    for row, parent in enumerate(parents.tolist() if isinstance(parents, np.ndarray) else parents):
        assert parent < row, "parents precede children"
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return depths


def ancestor_mask(parents: Sequence[int] | IntArray) -> BoolArray:
    """[n, n]: row i may look at row j iff j is i or an ancestor of i."""
    count = len(parents)
    mask = np.zeros((count, count), np.bool_)
    for row, parent in enumerate(parents):
        if parent >= 0:
            mask[row] = mask[parent]
        mask[row, row] = True
    return mask


def is_prefix_closed(parents: Sequence[int] | IntArray) -> bool:
    """Every row's parent is in the set and precedes it."""
    return all(-1 <= parent < row for row, parent in enumerate(parents))


def pack(segments: Sequence[Segment]) -> SuperTree:
    """Lay the segments of a step end to end."""
    lengths = [len(segment.tokens) for segment in segments]
    start = np.cumsum([0, *lengths])
    depth = _join([_depths([*segment.tail, *segment.parents])[len(segment.tail) :] for segment in segments])
    base_len = np.array([segment.base_len for segment in segments], np.int64)
    wanted = np.array([segment.num_logit_rows for segment in segments], np.int64)
    logit_start = np.cumsum([0, *wanted])
    return SuperTree(
        token=_join([segment.tokens for segment in segments]),
        parent=_join([segment.parents for segment in segments]),
        depth=depth,
        position=depth + np.repeat(base_len, lengths),
        segment=np.repeat(np.arange(len(segments), dtype=np.int64), lengths),
        slot=np.array([segment.slot for segment in segments], np.int64),
        base_len=base_len,
        tail=tuple(np.asarray(segment.tail, np.int64) for segment in segments),
        start=start,
        logit_row=np.arange(logit_start[-1]) + np.repeat(start[1:] - logit_start[1:], wanted),
        logit_start=logit_start,
    )


def _join(parts: Sequence[Sequence[int]]) -> IntArray:
    return np.array(list(chain.from_iterable(parts)), np.int64)
