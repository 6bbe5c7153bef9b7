"""Conversations of similar length, packed into batches of at most so many tokens.

Rows lie flat, one after another; where attention or the target wants a rectangle, `place` says where a row is in it:

    conversation b:   prompt t0 t1 t2 | answer t3 t4 t5 t6      L = 3, T = 7
    row i:            the pair (feature of t_i, embedding of t_i+1), about t_i+2
    draft starts:     rows L-1 .. T-3: drafting starts behind them, and the first drafted token is in the answer
    unrolled step s:  a start at row i goes on to row i + s, about t_i+s+2; the last s starts run out of tokens

Knows neither target nor head.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibration.train_draft.data import Conversation

POOL = 32  # batches whose conversations are sorted by length together


class Rectangle(NamedTuple):
    """Where flat rows go in a padded rectangle [height, width]."""

    place: Tensor  # [rows]: index into the flattened rectangle
    height: int
    width: int

    def spread(self, rows: Tensor) -> Tensor:
        """[rows, ...] -> [height, width, ...], zeros elsewhere."""
        flat = rows.new_zeros((self.height * self.width, *rows.shape[1:])).index_copy(0, self.place, rows)
        return flat.view(self.height, self.width, *rows.shape[1:])

    def gather(self, padded: Tensor) -> Tensor:
        """[height, width, ...] -> [rows, ...]"""
        return padded.flatten(0, 1).index_select(0, self.place)


class Batch(NamedTuple):
    """N rows of some conversations, M of which are draft starts."""

    members: tuple[int, ...]  # indices of the conversations in their set
    ids: Tensor  # [N]
    position: Tensor  # [N]
    rows: Rectangle  # of all rows: conversations x positions
    start: Tensor  # [M]: flat rows behind which drafting starts
    starts: Rectangle  # of the draft starts
    remaining: Tensor  # [M]: unrolled steps after the first for which a start has tokens
    label: Tensor  # [M]: the token that the first drafted one should be

    def to(self, device: torch.device) -> "Batch":
        moved = {name: getattr(self, name).to(device) for name in ("ids", "position", "start", "remaining", "label")}
        rows, starts = (r._replace(place=r.place.to(device)) for r in (self.rows, self.starts))
        return self._replace(rows=rows, starts=starts, **moved)


def make_batch(conversations: Sequence[Conversation], members: Sequence[int]) -> Batch:
    chosen = [conversations[member] for member in members]
    lengths = [c.length for c in chosen]
    counts = [len(c.answer_ids) - 1 for c in chosen]
    firsts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    height, width, start_width = len(chosen), max(lengths), max(counts)
    ids = np.concatenate([[*c.prompt_ids, *c.answer_ids] for c in chosen]).astype(np.int64)
    start = np.concatenate(
        [first + len(c.prompt_ids) - 1 + np.arange(n) for first, c, n in zip(firsts, chosen, counts, strict=True)]
    )
    return Batch(
        members=tuple(members),
        ids=torch.from_numpy(ids),
        position=torch.from_numpy(np.concatenate([np.arange(n) for n in lengths])),
        rows=Rectangle(_places(lengths, width), height, width),
        start=torch.from_numpy(start),
        starts=Rectangle(_places(counts, start_width), height, start_width),
        remaining=torch.from_numpy(np.concatenate([np.arange(n)[::-1] for n in counts]).copy()),
        label=torch.from_numpy(ids[start + 2]),
    )


def deal(lengths: Sequence[int], max_tokens: int, seed: str | None) -> list[list[int]]:
    """Members of every batch of one pass: at most `max_tokens` padded tokens each, or one longer conversation.

    `seed` shuffles conversations and then batches; None keeps everything in order of length.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    pool_size = len(order)
    numbers = random.Random(seed)
    if seed is not None:
        numbers.shuffle(order)
        pool_size = max(1, POOL * max_tokens * len(order) // sum(lengths))
    batches: list[list[int]] = []
    for pool_start in range(0, len(order), pool_size):
        pool = sorted(order[pool_start : pool_start + pool_size], key=lengths.__getitem__)
        batches.append([])
        for member in pool:
            if batches[-1] and lengths[member] * (len(batches[-1]) + 1) > max_tokens:
                batches.append([])
            batches[-1].append(member)
    if seed is not None:
        numbers.shuffle(batches)
    return batches


def _places(counts: Sequence[int], width: int) -> Tensor:
    return torch.from_numpy(np.concatenate([row * width + np.arange(count) for row, count in enumerate(counts)]))
