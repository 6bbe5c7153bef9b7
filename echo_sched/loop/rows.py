"""Requests as segments of packed rows: a decoding request's root and draft nodes, or a chunk of a prompt."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from echo_sched.tree import ROOT, DraftTree, Segment, SuperTree
from echo_sched.types import Request


class Chunk(NamedTuple):
    """The next `size` prompt tokens of a prefilling request."""

    request: Request
    size: int

    @property
    def finishes_prompt(self) -> bool:
        return self.request.num_computed + self.size == len(self.request.prompt_ids)

    @property
    def num_logit_rows(self) -> int:
        """How many of its last rows need logits: a prompt's last row draws the first output token, and the row before a
        prompt token says how likely that is, where somebody asked."""
        params, end = self.request.logprobs, self.request.num_computed + self.size
        if params is None or params.logprob_start_len < 0:
            return int(self.finishes_prompt)
        first = max(self.request.num_computed, params.logprob_start_len)
        return max(end - first, int(self.finishes_prompt))


def tree_segment(request: Request, tree: DraftTree) -> Segment:
    """Row 0 is the root, row i + 1 is node i; all of them need logits."""
    tokens = [request.output_ids[-1], *tree.tokens]
    parents = [-1, *(parent - ROOT for parent in tree.parents)]
    return Segment(slot_of(request), request.num_computed, tokens, parents, len(tokens))


def chunk_segment(chunk: Chunk) -> Segment:
    """A chain of prompt tokens."""
    request, size = chunk
    tokens = request.prompt_ids[request.num_computed : request.num_computed + size]
    return Segment(slot_of(request), request.num_computed, tokens, range(-1, size - 1), chunk.num_logit_rows)


def committed_features(
    kept: Sequence[tuple[Request, Sequence[int]]], packed: SuperTree, features: Tensor
) -> tuple[list[tuple[Request, int]], Tensor]:
    """Features [N, F] of all packed rows -> how many of each request's tokens were committed, and their features.

    `kept` has the committed row offsets of every segment. Requests that ended need none.
    """
    going = [
        (request, first + np.array(rows, np.int64))
        for (request, rows), first in zip(kept, packed.start[:-1].tolist(), strict=True)
        if request.finish is None
    ]
    rows = np.concatenate([rows for _, rows in going]) if going else np.zeros(0, np.int64)
    return [(request, len(rows)) for request, rows in going], features[torch.from_numpy(rows).to(features.device)]


def slot_of(request: Request) -> int:
    assert request.slot is not None, "the request is not running"
    return request.slot
