"""Elementwise functions whose rounding does not depend on how much they are given at once, for exact numerics.

torch splits a large one among its threads, and the end of each part runs code that rounds differently. So activations
and rotary tables are computed in parts that it does not split. Knows nothing of products of matrices.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers.activations import ACT2CLS

# torch gives an elementwise function on the CPU to one thread as long as it has no more elements than this.
UNSPLIT_ELEMENTS = 32768
UNSPLIT_POSITIONS = 64  # of a rotary table: its rows are at most a few hundred wide
UNSPLIT_WIDTH = 64  # a multiple of every vector's length
_ACTIVATIONS: tuple[Any, ...] = tuple({entry[0] if isinstance(entry, tuple) else entry for entry in ACT2CLS.values()})


class UnsplitActivation(nn.Module):
    """An activation function that rounds a row the same whatever the number of rows and of torch's threads."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function = function

    def forward(self, rows: Tensor) -> Tensor:
        return unsplit(self.function, rows)


class UnsplitRotary(nn.Module):
    """A rotary embedding (hidden, position_ids, ...) -> (cos, sin), in parts of as many positions each."""

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, hidden: Tensor, position_ids: Tensor, *rest: Any, **named: Any) -> tuple[Tensor, ...]:
        count = position_ids.shape[1]
        whole = pad(position_ids, (0, -count % UNSPLIT_POSITIONS))
        parts = [self.embedding(hidden, part, *rest, **named) for part in whole.split(UNSPLIT_POSITIONS, dim=1)]
        return tuple(torch.cat(table, dim=1)[:, :count] for table in zip(*parts, strict=True))


def unsplit(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """An elementwise function [..., width], a few rows at a time and filled to whole vectors: so no row is cut by a
    thread's boundary, and none ends where code for left-over elements would round it differently.
    """
    width = rows.shape[-1]
    missing = -width % UNSPLIT_WIDTH
    if rows.device.type != "cpu" or (not missing and torch.get_num_threads() <= 2):  # halves of whole vectors are whole
        return function(rows)
    flat = pad(rows.reshape(-1, width), (0, missing))
    parts = flat.split(max(1, UNSPLIT_ELEMENTS // flat.shape[1]))
    return torch.cat([function(part) for part in parts])[:, :width].view(rows.shape)


def compute_in_parts(model: nn.Module) -> None:
    """Let the model compute activations and rotary tables in such parts, in place."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, _ACTIVATIONS):
                setattr(parent, name, UnsplitActivation(child))
            elif name == "rotary_emb":
                setattr(parent, name, UnsplitRotary(child))
