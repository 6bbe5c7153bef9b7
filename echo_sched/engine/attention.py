"""Attention over the packed rows of a step, registered with transformers under one name.

Rows are packed [N], rows of nothing may follow them; keys and values live in the slots of the KV cache. Rows are
handled in groups (groups.py). Inside a group the query heads that share a KV head are folded into the row axis
([B, kv_heads, heads/kv_heads * n, d]).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from echo_sched.engine.groups import Group, group_segments
from echo_sched.engine.kv import KVCache
from echo_sched.engine.rectangle import Form, attend, attend_exactly
from echo_sched.errors import ModelError
from echo_sched.tree import SuperTree

ATTENTION_NAME = "echo_sched_packed"

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
        self.num_rows = tree.num_rows
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
        self._place = torch.from_numpy(place).to(device)  # [N]: where each packed row is in the groups' outputs

    def rows_of(self, outputs: Tensor, num_rows: int) -> Tensor:
        """[num_rows, ...]: the groups' outputs [places, ...] in the order of the packed rows; of the rows of nothing
        behind them, anything.
        """
        if len(self._place) < num_rows:  # alike in all layers
            self._place = torch.cat([self._place, self._place.new_zeros(num_rows - len(self._place))])
        return outputs[self._place]

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
    """transformers' attention signature. query [1, H, N, d], key and value [1, Hkv, N, d] -> ([1, N, H, d], None), rows
    of nothing counted.

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
    rows = slice(plan.num_rows)
    plan.kv.append(layer, plan.slot, plan.index, key[0, :, rows].transpose(0, 1), value[0, :, rows].transpose(0, 1))
    form = Form(scaling if scaling is not None else query.shape[-1] ** -0.5, softcap)
    outputs = [_attend(plan, group, layer, query[0], form, sliding_window) for group in plan.groups]
    stacked = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return plan.rows_of(stacked, query.shape[2])[None], None


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
