"""Groups of a step's segments that attention handles together: neighbouring slots with similar row counts and context
lengths, so that one rectangle (slots x rows x keys) per group wastes little:

    group 0: slots 0..6, 5 rows each, 210 keys      group 1: slot 7, a prompt chunk of 128 rows, 128 keys

Boundaries, row maps and masks are built once per step and shared by all layers. Knows no queries, keys or values.
"""

import numpy as np
import torch
from torch import Tensor

from echo_sched.engine.kernels import EXACT_ROW_MULTIPLE
from echo_sched.engine.kv import KEY_BLOCK
from echo_sched.engine.rectangle import whole
from echo_sched.tree import BoolArray, SuperTree, ancestor_mask, depths_of

# A rectangle of slots x (rows + 1) x keys smaller than this costs less than the fixed price of one more group.
GROUP_OVERHEAD = 4096


class Group:
    """Segments in neighbouring slots [low, high): a rectangle of `num_rows` rows each, padded, over `num_keys` keys.

    Places of the rectangle that hold no row (short segments, slots of nobody) read packed row 0, see key 0, and are
    never read back.
    """

    def __init__(self, tree: SuperTree, segments: list[int], *, exact: bool, device: torch.device) -> None:
        slots = tree.slot[segments]
        counts = tree.start[1:][segments] - tree.start[:-1][segments]
        num_keys = int((tree.first_index[segments] + counts).max())
        self.low, self.high = int(slots.min()), int(slots.max()) + 1
        # In exact numerics products must not depend on the batch: rows and keys in whole blocks.
        self.num_rows = whole(int(counts.max()), EXACT_ROW_MULTIPLE if exact else 1)
        self.num_keys = whole(num_keys, KEY_BLOCK if exact else 1)
        self._device = device
        self._masks: dict[int | None, Tensor] = {}

        width = self.high - self.low
        gather = np.zeros((width, self.num_rows), np.int64)
        self._row_position = np.zeros((width, self.num_rows), np.int64)
        self._key_position = np.zeros((width, self.num_keys), np.int64)
        self._visible = np.zeros((width, self.num_rows, self.num_keys), np.bool_)
        self._visible[:, :, 0] = True
        for segment, slot, count in zip(segments, (slots - self.low).tolist(), counts.tolist(), strict=True):
            first, base, parents = int(tree.start[segment]), int(tree.base_len[segment]), tree.local_parents(segment)
            waiting, end = len(parents) - count, base + len(parents)
            gather[slot, :count] = np.arange(first, first + count)
            self._row_position[slot, :count] = tree.position[first : first + count]
            self._key_position[slot, :base] = np.arange(base)
            self._key_position[slot, base : base + waiting] = base + depths_of(tree.tail[segment])
            self._key_position[slot, base + waiting : end] = tree.position[first : first + count]
            self._visible[slot, :count, 0] = False
            self._visible[slot, :count, :base] = True
            self._visible[slot, :count, base:end] = ancestor_mask(parents)[waiting:]
        self.gather = torch.from_numpy(gather).to(device)
        # Packed rows of this group, and the place of each in the flattened rectangle.
        self.rows = np.concatenate([np.arange(tree.start[s], tree.start[s + 1]) for s in segments])
        self.places = np.concatenate(
            [slot * self.num_rows + np.arange(count) for slot, count in zip(slots - self.low, counts, strict=True)]
        )

    def visible(self, window: int | None) -> BoolArray:
        """[slots, rows, keys]: what each row may look at; a window compares positions, not storage places."""
        if window is None:
            return self._visible
        near = self._row_position[:, :, None] - self._key_position[:, None, :] < window
        inside: BoolArray = self._visible & near
        inside[:, :, 0] |= ~inside.any(axis=2)  # only places of no row: a row always sees itself
        return inside

    def mask(self, window: int | None, folds: int, dtype: torch.dtype) -> Tensor:
        """Additive mask [slots, 1, folds * rows, keys], built at first use and shared by all layers."""
        if window not in self._masks:
            visible = torch.from_numpy(self.visible(window)).to(self._device)
            bias = torch.zeros(visible.shape, dtype=dtype, device=self._device).masked_fill_(~visible, float("-inf"))
            self._masks[window] = bias.repeat(1, folds, 1)[:, None] if self.num_rows > 1 else bias[:, None]
        return self._masks[window]


def group_segments(tree: SuperTree) -> list[list[int]]:
    """Cut the segments, in slot order, into groups whose rectangles waste less than one more group would cost.

    So a long prompt chunk never shares a group with trees: the rectangle would dwarf both.
    """
    rows = tree.start[1:] - tree.start[:-1]
    keys = tree.first_index + rows
    groups: list[list[int]] = []
    shape = (0, 0, 0)  # first slot, most rows, most keys of the open group
    for segment in np.argsort(tree.slot, kind="stable").tolist():
        slot, own = int(tree.slot[segment]), (int(rows[segment]), int(keys[segment]))
        if groups:
            first, most_rows, most_keys = shape
            open_width = int(tree.slot[groups[-1][-1]]) + 1 - first
            merged = (max(most_rows, own[0]), max(most_keys, own[1]))
            apart = _area(open_width, most_rows, most_keys) + _area(1, *own) + GROUP_OVERHEAD
            if _area(slot + 1 - first, *merged) <= apart:
                groups[-1].append(segment)
                shape = (first, *merged)
                continue
        groups.append([segment])
        shape = (slot, *own)
    return groups


def _area(slots: int, rows: int, keys: int) -> int:
    return slots * (rows + 1) * keys  # + 1: reading the keys costs about as much as one row of queries
