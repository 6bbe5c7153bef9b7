"""Attention over the packed rows of a step, registered with transformers under one name.

Rows are packed [N]; keys and values live in the slots of the KV cache. Rows are handled in groups of neighbouring slots
with similar row counts and context lengths, so that one rectangle (slots x rows x keys) per group wastes little:

    group 0: slots 0..6, 5 rows each, 210 keys      group 1: slot 7, a prompt chunk of 128 rows, 128 keys

Inside a group the query heads that share a KV head are folded into the row axis ([B, kv_heads, heads/kv_heads * n, d]).
Group boundaries, row maps and masks are built once per step and shared by all layers.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from echo_sched.engine.kernels import EXACT_ROW_MULTIPLE
from echo_sched.engine.kv import KEY_BLOCK, KVCache
from echo_sched.engine.rectangle import Form, attend, attend_exactly, whole
from echo_sched.errors import ModelError
from echo_sched.tree import BoolArray, SuperTree, ancestor_mask, depths_of

ATTENTION_NAME = "echo_sched_packed"

# A rectangle of slots x (rows + 1) x keys smaller than this costs less than the fixed price of one more group.
GROUP_OVERHEAD = 4096

# Keyword arguments that models pass along and that do not change what attention computes.
_HARMLESS = frozenset(
    {
        "position_ids",
        "use_cache",
        "output_attentions",
        "output_hidden_states",
        "cache_position",
        "is_causal",
        "return_dict",
        "output_router_logits",
    }
)


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


class AttentionPlan:
    """Everything attention needs to know about one step, for all layers."""

    def __init__(
        self,
        tree: SuperTree,
        kv: KVCache,
        *,
        exact: bool,
        device: torch.device,
        windows: Sequence[int | None] | None = None,
    ) -> None:
        """`windows` [layers]: the window each layer must ask for, where it is known."""
        self.kv = kv
        self.exact = exact
        self._windows = windows
        offset = np.arange(tree.num_rows) - tree.start[tree.segment]
        self.slot = torch.from_numpy(tree.slot[tree.segment]).to(device)
        self.index = torch.from_numpy(tree.first_index[tree.segment] + offset).to(device)
        self.groups = [Group(tree, s, exact=exact, device=device) for s in group_segments(tree)]
        place = np.zeros(tree.num_rows, np.int64)
        num_places = 0
        for group in self.groups:
            place[group.rows] = num_places + group.places
            num_places += group.gather.numel()
        self.scatter = torch.from_numpy(place).to(device)  # [N]: where each packed row is in the groups' outputs

    def check(self, layer: int, key: Tensor, value: Tensor, window: int | None) -> None:
        """Raises ModelError when a layer does not attend as its config says."""
        expected = (1, self.kv.shape.num_kv_heads, key.shape[2], self.kv.shape.head_dim)
        if key.shape != expected or value.shape != expected:
            raise ModelError(
                f"layer {layer} has keys {tuple(key.shape)} and values {tuple(value.shape)}, not {expected}"
            )
        if self._windows is not None and window != self._windows[layer]:
            shortest = min(w for w in (window, self._windows[layer]) if w is not None)
            if shortest < self.kv.max_len:
                raise ModelError(f"layer {layer} asks for window {window}, its config for {self._windows[layer]}")


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


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    echo_plan: AttentionPlan | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """transformers' attention signature. query [1, H, N, d], key and value [1, Hkv, N, d] -> ([1, N, H, d], None).

    `softcap` bends scores to stay between -softcap and softcap, before the mask. Raises ModelError for any argument
    that would change the maths and is not handled here (sinks, ...).
    """
    refused = sorted(name for name, v in others.items() if v is not None and name not in _HARMLESS)
    if refused or attention_mask is not None or dropout:
        raise ModelError(
            f"this model's attention uses {', '.join(refused) or 'a mask or dropout'}, which is not supported"
        )
    if echo_plan is None:
        raise ModelError("this model does not pass keyword arguments to its attention, so it cannot be served")
    plan, layer = echo_plan, int(module.layer_idx)  # type: ignore[arg-type]
    plan.check(layer, key, value, sliding_window)
    plan.kv.append(layer, plan.slot, plan.index, key[0].transpose(0, 1), value[0].transpose(0, 1))
    form = Form(scaling if scaling is not None else query.shape[-1] ** -0.5, softcap)
    outputs = [_attend(plan, group, layer, query[0], form, sliding_window) for group in plan.groups]
    stacked = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return stacked[plan.scatter][None], None


def _attend(plan: AttentionPlan, group: Group, layer: int, query: Tensor, form: Form, window: int | None) -> Tensor:
    """One group's attention. query [H, N, d] -> [slots * rows, H, d]."""
    key, value = plan.kv.view(layer, group.low, group.high, group.num_keys)
    heads, _, width = query.shape
    kv_heads = key.shape[1]
    folds = heads // kv_heads
    slots, rows = group.gather.shape
    # [H, slots, rows, d] -> [slots, kv_heads, folds * rows, d]
    folded = query[:, group.gather].view(kv_heads, folds, slots, rows, width).permute(2, 0, 1, 3, 4)
    folded = folded.reshape(slots, kv_heads, folds * rows, width)
    mask = group.mask(window, folds, torch.float64 if plan.exact else query.dtype)
    out = attend_exactly(folded, key, value, mask, form) if plan.exact else attend(folded, key, value, mask, form)
    out = out.view(slots, kv_heads, folds, rows, width).permute(0, 3, 1, 2, 4)
    return out.reshape(slots * rows, heads, width)


AttentionInterface.register(ATTENTION_NAME, packed_attention)
