"""What linear layers cost on this machine by number of rows, and whether a row's rounding depends on that number.

    python -m benchmarks.linear_kernels

The layers are SmolLM2-135M's: 30 of 576/1536 and the output layer. One line per dtype, kernel and row count.
"""

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from echo_sched.engine.kernels import PackedLinear

SHAPES = [(576, 576), (192, 576), (192, 576), (576, 576), (1536, 576), (1536, 576), (576, 1536)] * 30 + [(49152, 576)]
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
CHECKED_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 255, 256)
REPEATS = 5

Kernel = Callable[[Tensor], Tensor]


def main() -> None:
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}")
    for dtype in (torch.float32, torch.bfloat16):
        weights = [nn.Parameter(torch.randn(shape, dtype=dtype) * 0.02, requires_grad=False) for shape in SHAPES]
        plain: list[Kernel] = [lambda rows, weight=weight: linear(rows, weight) for weight in weights]  # type: ignore[misc]
        fast: list[Kernel] = [PackedLinear(weight, None, "fast") for weight in weights]
        exact: list[Kernel] = [PackedLinear(weight, None, "exact") for weight in weights]
        for name, kernels in (("F.linear", plain), ("fast", fast), ("exact", exact)):
            times = {rows: milliseconds(kernels, rows, dtype) for rows in ROWS}
            print(f"{dtype} {name}: ms by rows", {rows: round(ms, 1) for rows, ms in times.items()})
            print(f"{dtype} {name}: row counts that round differently", differing(kernels[0], dtype))
    double = torch.randn(SHAPES[0], dtype=torch.float64)  # no packed product to compare with
    print(
        "torch.float64 F.linear: row counts that round differently",
        differing(lambda rows: linear(rows, double), torch.float64),
    )


def milliseconds(kernels: list[Kernel], rows: int, dtype: torch.dtype) -> float:
    """Median over repeats of all layers once, after one run that is not counted."""
    inputs = {width: torch.randn(rows, width, dtype=dtype) for width in {shape[1] for shape in SHAPES}}
    seconds = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        for kernel, (_, width) in zip(kernels, SHAPES, strict=True):
            kernel(inputs[width])
        seconds.append(time.perf_counter() - start)
    return 1000 * float(np.median(seconds[1:]))


def differing(kernel: Kernel, dtype: torch.dtype) -> list[int]:
    """Row counts at which the first or the last rows differ in any bit from the same rows among 256."""
    rows = torch.randn(256, SHAPES[0][1], dtype=dtype)
    whole = kernel(rows)
    return [
        count
        for count in CHECKED_ROWS
        if not (torch.equal(kernel(rows[:count]), whole[:count]) and torch.equal(kernel(rows[-count:]), whole[-count:]))
    ]


if __name__ == "__main__":
    with torch.inference_mode():
        main()
