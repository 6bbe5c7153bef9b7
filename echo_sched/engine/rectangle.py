"""Attention over one rectangle of slots, rows and keys: queries [slots, kv_heads, rows, d] against keys and values
[slots, kv_heads, keys, d], under an additive mask [slots, 1, rows, keys].

Knows nothing of trees, requests or caches: groups.py lays the rectangles out.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from echo_sched.engine.elementwise import unsplit
from echo_sched.engine.kernels import EXACT_ROW_MULTIPLE
from echo_sched.engine.kv import KEY_BLOCK


class Form(NamedTuple):
    """How a layer turns products of queries and keys into scores: scaled, then bent to stay within +- softcap."""

    scale: float
    softcap: float | None


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, form: Form) -> Tensor:
    """torch's own attention, except under a cap, which it does not know: that is bent in float32 at least."""
    if form.softcap is None:
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=form.scale)
    products = torch.matmul(query * form.scale, key.transpose(2, 3))
    wide = products.to(torch.promote_types(products.dtype, torch.float32))
    weights = torch.softmax(_capped(wide, form.softcap) + mask, dim=-1)
    return torch.matmul(weights.to(value.dtype), value)


def attend_exactly(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, form: Form) -> Tensor:
    """Attention whose rounding does not depend on the shape of the batch; the mask is float64.

    Every sum runs over keys in storage order inside a float64 matrix product, the softmax's denominator included (a
    column of ones beside V), so masked keys add exact zeros wherever they stand. A product's rounding may depend on
    layout, on the number of columns and, where that is odd, on a row's place: so every block of keys is a product of
    its own, laid out alike, and V is filled.
    """
    slots, heads, rows, width = query.shape
    blocks = key.double().view(slots, heads, -1, KEY_BLOCK, width).transpose(3, 4).contiguous()
    products = torch.matmul(query.double()[:, :, None], blocks).transpose(2, 3).reshape(slots, heads, rows, -1)
    masked = _capped(products * form.scale, form.softcap) + mask
    weights = unsplit(torch.exp, masked - masked.amax(-1, keepdim=True))
    filled = value.new_zeros(*value.shape[:-1], whole(width + 1, EXACT_ROW_MULTIPLE), dtype=torch.float64)
    filled[..., :width], filled[..., width] = value, 1.0
    summed = torch.matmul(weights, filled)
    return (summed[..., :width] / summed[..., width : width + 1]).to(query.dtype)


def _capped(products: Tensor, softcap: float | None) -> Tensor:
    return products if softcap is None else unsplit(torch.tanh, products / softcap) * softcap


def whole(count: int, block: int) -> int:
    """`count`, rounded up to whole blocks."""
    return -(-count // block) * block
