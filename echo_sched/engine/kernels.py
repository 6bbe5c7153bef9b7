"""Matrix kernels for a model's linear layers, chosen for the number of packed rows and for the numerics asked for.

On a CPU, torch's plain `F.linear` has two weaknesses: without hardware bfloat16 its bfloat16 product takes time in
proportion to the rows, and a row's rounding may depend on how many rows it is computed with. oneDNN's pre-packed
product has neither: in float32 its rows were bitwise equal for every row count from two on (docs/log.md). So:

    fast    the packed product, in bfloat16 where the CPU has units for it; without them few rows run as F.linear
    exact   the packed float32 product for every row count, a lone row twice (bfloat16 in and out rounded once each);
            where oneDNN does not serve (float64, other devices): F.linear on rows padded to a fixed multiple

oneDNN compiles a kernel for every row count it meets, which takes longer than running it, and keeps only so many; trees
give every step another count. So forwards fill their rows up to one of few counts (`whole_rows`).

Elementwise functions have that weakness in disguise: elementwise.py. Exactness is not assumed from either: probe.py
checks it at load. Knows nothing of attention, caches or requests.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from echo_sched.engine.elementwise import compute_in_parts, unsplit

Numerics = Literal["fast", "exact"]

# Rows from which the packed float32 product is faster than F.linear (docs/log.md). Packed bfloat16 always is.
PACKED_FROM_ROWS = {torch.bfloat16: 3, torch.float32: 2}
# F.linear's rows were bitwise independent of their number when it was a multiple of 4 (float32) or 2 (float64).
EXACT_ROW_MULTIPLE = 8


class PackedLinear(nn.Module):
    """A linear layer that keeps its weight [out, in] and a copy packed by oneDNN."""

    def __init__(self, weight: Tensor, bias: Tensor | None, numerics: Numerics) -> None:
        super().__init__()
        self.weight = weight
        self.bias = bias
        keep = weight.dtype == torch.bfloat16 and computes_bfloat16(weight.device) and numerics == "fast"
        self._dtype = weight.dtype if keep else torch.float32
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().to(self._dtype), None)
        self._packed_bias = None if bias is None else bias.detach().to(self._dtype)
        self._from_rows = 0 if keep or numerics == "exact" else PACKED_FROM_ROWS[weight.dtype]
        self._exact = numerics == "exact"

    def forward(self, rows: Tensor) -> Tensor:
        num_rows = rows.numel() // rows.shape[-1]
        if num_rows < self._from_rows:
            return linear(rows, self.weight, self.bias)
        if self._exact and num_rows == 1:  # a lone row has a kernel of its own, which may add up in another order
            return self._product(rows.reshape(1, -1).expand(2, -1))[:1].view(*rows.shape[:-1], -1)
        return self._product(rows)

    def _product(self, rows: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            rows.to(self._dtype), self._packed, self._packed_bias, "none", [], ""
        )
        return product.to(rows.dtype)


class PaddedLinear(nn.Module):
    """A linear layer whose product always has a multiple of EXACT_ROW_MULTIPLE rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = weight
        self.bias = bias

    def forward(self, rows: Tensor) -> Tensor:
        return padded_linear(rows, self.weight, self.bias)


def padded_linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    flat = rows.reshape(-1, rows.shape[-1])
    product = linear(pad(flat, (0, 0, 0, -flat.shape[0] % EXACT_ROW_MULTIPLE)), weight, bias)
    return product[: flat.shape[0]].view(*rows.shape[:-1], -1)


def whole_rows(rows: Tensor) -> Tensor:
    """rows [N, ...] and zeros behind them, up to a number that kernels are compiled for: eight of them in every octave,
    so that an eighth is added at most. On an accelerator nothing is.
    """
    num_rows = len(rows)
    step = 1 << max(num_rows.bit_length() - 4, 0)
    missing = -num_rows % step
    if not missing or rows.device.type != "cpu":
        return rows
    return torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])])


class InvariantFunctions(TorchFunctionMode):
    """While active, what a model computes outside its modules does not depend on the number of rows either: products
    with weights that belong to no linear layer (routers and experts), and the tanh that caps logits.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is linear:
            return padded_linear(*args, **(kwargs or {}))
        if func is torch.tanh:
            return unsplit(torch.tanh, *args)
        return func(*args, **(kwargs or {}))


def computes_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 products are faster than float32 ones there: a CPU may lack units for them."""
    if device.type != "cpu":
        return True
    allowed = torch.backends.cpu.get_cpu_capability().startswith("AVX512")  # torch can be told to use less
    return bool(allowed and (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()))


def packed_bytes(model: nn.Module) -> int:
    """Extra bytes that the packed float32 copies of a model's linear layers take."""
    return sum(4 * module.weight.numel() for _, _, module in _linear_layers(model))


def install_kernels(model: nn.Module, numerics: Numerics, *, allow_packing: bool) -> str:
    """Replace the model's linear layers in place where a better kernel serves; returns what was chosen, in words.

    `allow_packing` is False where the packed copies would not fit into memory.
    """
    example = next(model.parameters())
    can_pack = (
        allow_packing
        and example.device.type == "cpu"
        and example.dtype in PACKED_FROM_ROWS
        and torch.backends.mkldnn.is_available()
    )
    build: Callable[[Tensor, Tensor | None], nn.Module]
    if can_pack:
        build, chosen = (lambda w, b: PackedLinear(w, b, numerics)), "oneDNN packed"
    elif numerics == "exact":
        build, chosen = PaddedLinear, f"row count padded to a multiple of {EXACT_ROW_MULTIPLE}"
    else:
        return "torch"
    for parent, name, module in list(_linear_layers(model)):
        weight = nn.Parameter(module.weight.t().contiguous()) if isinstance(module, Conv1D) else module.weight
        setattr(parent, name, build(weight, module.bias))
    if numerics == "exact":
        compute_in_parts(model)
    return chosen


def invariant_functions(model: PreTrainedModel) -> AbstractContextManager[object]:
    """What must be active around a forward with exact kernels; it costs a little, so only where it is needed."""
    if model._can_set_experts_implementation():
        model.set_experts_implementation("eager")  # one F.linear per expert; the others choose kernels by the rows
    loose = any(
        weight.dim() > 1
        for module in model.modules()
        if not isinstance(module, nn.Embedding | PackedLinear | PaddedLinear)
        for weight in module.parameters(recurse=False)
    )
    capped = getattr(model.config, "final_logit_softcapping", None) is not None
    return InvariantFunctions() if loose or capped else nullcontext()


def _linear_layers(model: nn.Module) -> list[tuple[nn.Module, str, nn.Linear | Conv1D]]:
    """(parent, attribute, layer) of every linear layer; GPT-2 keeps its weights transposed in Conv1D."""
    return [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.Linear | Conv1D) and type(child) in (nn.Linear, Conv1D)  # subclasses do more than that
    ]
