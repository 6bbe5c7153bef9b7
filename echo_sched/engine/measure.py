"""The cost curve T(N, L) of this machine: seconds of one packed forward for N rows at context L.

Measured, not modelled: medians of interleaved repeats, with their spread, as they come (jagged where the machine is).
Making the curve monotone and storing it is calibration's work. Knows nothing of requests' text, policies or profiles.
"""

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from echo_sched.engine.forward import Target
from echo_sched.engine.kernels import computes_bfloat16
from echo_sched.engine.kv import KVCache
from echo_sched.tree import Segment, SuperTree, pack

ROWS_PER_REQUEST = 4  # a root and three nodes; over how many requests N is spread decides what a context costs
NUM_WARM_UPS = 1  # the first run of a shape allocates and, on some devices, chooses kernels


class CostCurve(NamedTuple):
    """seconds[n][c] is the median, spread[n][c] the interquartile range, for num_tokens[n] rows at context[c]."""

    num_tokens: tuple[int, ...]
    context: tuple[int, ...]
    num_requests: tuple[int, ...]  # among which the rows were spread
    seconds: tuple[tuple[float, ...], ...]
    spread: tuple[tuple[float, ...], ...]
    measured_on: dict[str, Any]  # JSON-able: device, torch build, number of threads


def measure_cost(
    target: Target,
    *,
    max_model_len: int,
    num_tokens: Sequence[int],
    contexts: Sequence[int],
    num_repeats: int,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> CostCurve:
    """The curve of an idle target, at those of `num_tokens` rows that fit a model length of `max_model_len` tokens.

    Contexts longer than what leaves room for the rows are replaced by the longest that does.
    """
    slots = target.kv.num_slots
    fitting = [rows for rows in num_tokens if longest_context(slots, max_model_len, rows) >= 1]
    assert fitting, "one row fits behind one token in every model length"
    longest = min(longest_context(slots, max_model_len, rows) for rows in fitting)
    return measure_forward(
        target.forward,
        target.kv,
        target.device,
        num_tokens=fitting,
        contexts=sorted({min(context, longest) for context in contexts}),
        num_repeats=num_repeats,
        report=report,
    )


def measure_forward(
    forward: Callable[[SuperTree], object],
    kv: KVCache,
    device: torch.device,
    *,
    num_tokens: Sequence[int],
    contexts: Sequence[int],
    num_repeats: int,
    report: Callable[[int, int], None] = lambda done, total: None,
    clock: Callable[[], float] = time.perf_counter,
) -> CostCurve:
    """Time `forward` for every (N, L), interleaved, so that a slow spell of the machine hits all shapes alike.

    All slots of `kv` must be free; they are free again afterwards, their contents are undefined. `report(done, total)`
    follows the runs.
    """
    assert num_repeats >= 1 and kv.num_free == kv.num_slots, "costs are measured on an idle engine"
    assert all(max(contexts) <= longest_context(kv.num_slots, kv.max_len, rows) for rows in num_tokens), "must fit"
    slots = [kv.allocate() for _ in range(kv.num_slots)]
    shapes = [(rows, context) for rows in num_tokens for context in contexts]
    trees = {shape: _tree(slots, *shape) for shape in shapes}
    seconds: dict[tuple[int, int], list[float]] = {shape: [] for shape in shapes}
    order = random.Random(0)
    rounds = [shape for _ in range(NUM_WARM_UPS + num_repeats) for shape in order.sample(shapes, len(shapes))]
    try:
        for done, shape in enumerate(rounds, start=1):
            start = clock()
            forward(trees[shape])
            if device.type != "cpu":  # elsewhere a forward returns before its result is there
                torch.accelerator.synchronize(device)
            seconds[shape].append(clock() - start)
            report(done, len(rounds))
    finally:
        for slot in slots:
            kv.free(slot)
    measured = [[seconds[rows, context][NUM_WARM_UPS:] for context in contexts] for rows in num_tokens]
    return CostCurve(
        tuple(num_tokens),
        tuple(contexts),
        tuple(_num_requests(kv.num_slots, rows) for rows in num_tokens),
        tuple(tuple(float(np.median(runs)) for runs in row) for row in measured),
        tuple(tuple(_spread(runs) for runs in row) for row in measured),
        device_facts(device),
    )


def longest_context(num_slots: int, max_len: int, num_tokens: int) -> int:
    """The longest context behind which `num_tokens` rows, spread over requests, end within `max_len` tokens each."""
    return max_len - -(-num_tokens // _num_requests(num_slots, num_tokens))


def _num_requests(num_slots: int, num_tokens: int) -> int:
    return min(num_slots, -(-num_tokens // ROWS_PER_REQUEST))


def _tree(slots: Sequence[int], num_tokens: int, context: int) -> SuperTree:
    """`num_tokens` rows as chains of nearly equal length, each behind `context` cached tokens; logits for every row."""
    num_requests = _num_requests(len(slots), num_tokens)
    lengths = [num_tokens // num_requests + (index < num_tokens % num_requests) for index in range(num_requests)]
    return pack(
        [
            Segment(slot, context, tokens=[0] * length, parents=range(-1, length - 1), num_logit_rows=length)
            for slot, length in zip(slots, lengths, strict=False)
        ]
    )


def _spread(seconds: Sequence[float]) -> float:
    low, high = np.percentile(seconds, (25, 75))
    return float(high - low)


def device_facts(device: torch.device) -> dict[str, Any]:
    """What the seconds belong to, as far as torch knows."""
    name = str(device) if device.type == "cpu" else torch.get_device_module(device).get_device_name(device)
    return {
        "device": name,
        "instructions": _instructions(device),
        "torch": str(torch.__version__),
        "num_threads": torch.get_num_threads(),
    }


def _instructions(device: torch.device) -> str | None:
    """What kernels may use: processors of one name differ in it."""
    if device.type != "cpu":
        return None
    return str(torch.backends.cpu.get_cpu_capability()) + (" with bfloat16" if computes_bfloat16(device) else "")
