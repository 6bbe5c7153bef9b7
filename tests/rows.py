"""Requests driven through a target by hand, row by row, and what the plain model says about the same rows.

The loop decides nothing here: a test says which rows of which requests share a forward, and which are kept.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from echo_sched.engine.forward import Target
from echo_sched.tree import Segment, ancestor_mask, pack
from tests.tiny_models import VOCAB_SIZE


class Rows(NamedTuple):
    """One request's rows of a forward: a chunk of its prompt, or its root and a draft tree."""

    tokens: Sequence[int]
    parents: Sequence[int]

    def path(self, row: int) -> list[int]:
        """Rows from the first down to this one."""
        return ancestor_mask(self.parents)[row].nonzero()[0].tolist()  # type: ignore[no-any-return]

    def leaves(self) -> list[int]:
        return sorted(set(range(len(self.tokens))) - set(self.parents))


def chunk(tokens: Sequence[int]) -> Rows:
    return Rows(tokens, range(-1, len(tokens) - 1))


def random_tree(size: int, seed: int) -> Rows:
    """A root, two children, and the other rows below the second child: so every longer path leaves a row out."""
    numbers = np.random.default_rng(seed)
    below = (int(numbers.integers(2, row)) for row in range(3, size))
    return Rows(numbers.integers(VOCAB_SIZE, size=size).tolist(), [-1, 0, 0, *below])


class Driver:
    """Requests in slots of a target, and the tokens each has committed."""

    def __init__(self, target: Target, names: str) -> None:
        self.target = target
        self.slots = {name: target.kv.allocate() for name in names}
        self.committed: dict[str, list[int]] = {name: [] for name in names}

    def forward(self, parts: Mapping[str, Rows]) -> dict[str, Tensor]:
        """One forward of all parts together; the logits of every row [rows, vocab], per request."""
        tree = pack(
            [
                Segment(self.slots[name], len(self.committed[name]), rows.tokens, rows.parents, len(rows.tokens))
                for name, rows in parts.items()
            ]
        )
        logits = self.target.forward(tree).split([len(rows.tokens) for rows in parts.values()])
        return dict(zip(parts, logits, strict=True))

    def commit(self, kept: Mapping[str, tuple[Rows, Sequence[int]]]) -> None:
        """Keep these rows of the last forward."""
        self.target.kv.commit([(self.slots[name], rows) for name, (_, rows) in kept.items()])
        for name, (rows, numbers) in kept.items():
            self.committed[name] += [rows.tokens[number] for number in numbers]

    def free(self) -> None:
        for slot in self.slots.values():
            self.target.kv.free(slot)


def plain_rows(model: PreTrainedModel, committed: Sequence[int], rows: Rows) -> Tensor:
    """[rows, vocab]: what the plain model says after each row, computing each path from its first token."""
    width = model.get_output_embeddings().weight.shape[0]
    expected = torch.empty(len(rows.tokens), width, dtype=model.dtype)  # type: ignore[arg-type]
    for leaf in rows.leaves():
        path = rows.path(leaf)
        ids = torch.tensor([[*committed, *(rows.tokens[row] for row in path)]])
        with torch.inference_mode():
            expected[path] = model(input_ids=ids, use_cache=False).logits[0, -len(path) :]
    return expected


def lone_rows(target: Target, committed: Sequence[int], rows: Rows, chunk_len: int) -> Tensor:
    """The same by the packed engine, alone in the batch: the prefix in chunks, each path token by token."""
    logits = torch.empty(len(rows.tokens), target.facts.vocab_size, dtype=target.facts.dtype)
    for leaf in rows.leaves():
        driver = Driver(target, "x")
        for start in range(0, len(committed), chunk_len):
            part = chunk(committed[start : start + chunk_len])
            driver.forward({"x": part})
            driver.commit({"x": (part, range(len(part.tokens)))})
        for row in rows.path(leaf):
            step = chunk([rows.tokens[row]])
            logits[row] = driver.forward({"x": step})["x"][0]
            driver.commit({"x": (step, [0])})
        driver.free()
    return logits
