"""The cost curve T(N, C) of this machine: seconds of one packed forward for N rows, C tokens being cached in all.

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

TYPICAL_CONTEXT = 256  # cached tokens of a request: how many requests C stands for, as far as rows and slots allow
FEW_ROWS = 64
NUM_WARM_UPS = 1  # the first run of a shape allocates and, on some devices, chooses kernels


class CostCurve(NamedTuple):
    """seconds[n][c] is the median, spread[n][c] the interquartile range; num_tokens[n] rows, cached_tokens[c]."""

    num_tokens: tuple[int, ...]
    cached_tokens: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]
    spread: tuple[tuple[float, ...], ...]
    measured_on: dict[str, Any]  # JSON-able: device, torch build, number of threads


def measure_cost(
    target: Target,
    *,
    max_model_len: int,
    num_tokens: Sequence[int],
    cached_tokens: Sequence[int],
    num_repeats: int,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> CostCurve:
    """The curve of an idle target, at those of `num_tokens` rows that fit a model length of `max_model_len` tokens.

    Of `cached_tokens`, those count that leave room for the rows; where none does, the most that does.
    """
    slots = target.kv.num_slots
    fitting = [rows for rows in num_tokens if most_cached(slots, max_model_len, rows) >= 1]
    assert fitting, "one row fits behind one token in every model length"
    most = min(most_cached(slots, max_model_len, rows) for rows in fitting)
    return measure_forward(
        target.forward,
        target.kv,
        target.device,
        num_tokens=fitting,
        cached_tokens=sorted({cached for cached in cached_tokens if cached <= most} or {most}),
        num_repeats=num_repeats,
        report=report,
    )


def measure_forward(
    forward: Callable[[SuperTree], object],
    kv: KVCache,
    device: torch.device,
    *,
    num_tokens: Sequence[int],
    cached_tokens: Sequence[int],
    num_repeats: int,
    report: Callable[[int, int], None] = lambda done, total: None,
    clock: Callable[[], float] = time.perf_counter,
) -> CostCurve:
    """Time `forward` for every (N, C), interleaved, so that a slow spell of the machine hits all shapes alike; twice as
    often for FEW_ROWS at most, which take least and decide most.

    All slots of `kv` must be free; they are free again afterwards, their contents are undefined. `report(done, total)`
    follows the runs.
    """
    assert num_repeats >= 1 and kv.num_free == kv.num_slots, "costs are measured on an idle engine"
    assert all(max(cached_tokens) <= most_cached(kv.num_slots, kv.max_len, rows) for rows in num_tokens), "must fit"
    slots = [kv.allocate() for _ in range(kv.num_slots)]
    shapes = [(rows, cached) for rows in num_tokens for cached in cached_tokens]
    trees = {shape: _tree(slots, *shape, kv.max_len) for shape in shapes}
    seconds: dict[tuple[int, int], list[float]] = {shape: [] for shape in shapes}
    order = random.Random(0)
    again = [(rows, cached) for rows, cached in shapes if rows <= FEW_ROWS]
    rounds = [shape for _ in range(NUM_WARM_UPS) for shape in order.sample(shapes, len(shapes))]
    rounds += [shape for _ in range(num_repeats) for shape in order.sample(shapes + again, len(shapes + again))]
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
    measured = [[seconds[rows, cached][NUM_WARM_UPS:] for cached in cached_tokens] for rows in num_tokens]
    return CostCurve(
        tuple(num_tokens),
        tuple(cached_tokens),
        tuple(tuple(float(np.median(runs)) for runs in row) for row in measured),
        tuple(tuple(_spread(runs) for runs in row) for row in measured),
        device_facts(device),
    )


def most_cached(num_slots: int, max_len: int, num_tokens: int) -> int:
    """The most cached tokens behind which `num_tokens` rows, spread over all slots, end within `max_len` each."""
    return num_slots * (max_len - -(-num_tokens // num_slots))


def _tree(slots: Sequence[int], num_tokens: int, cached_tokens: int, max_len: int) -> SuperTree:
    """`num_tokens` rows as chains of nearly equal length, on requests that share the cached tokens nearly equally.

    As many requests as have a typical context each, more where they would not fit; a row at least of each, so that few
    rows behind very many cached tokens cost what that many requests do. Logits for every row.
    """
    num_requests = min(max(1, round(cached_tokens / TYPICAL_CONTEXT)), len(slots), num_tokens)
    while -(-cached_tokens // num_requests) + -(-num_tokens // num_requests) > max_len:
        num_requests += 1
    lengths = _spread_over(max(num_tokens, num_requests), num_requests)
    contexts = _spread_over(cached_tokens, num_requests)
    return pack(
        [
            Segment(slot, context, tokens=[0] * length, parents=range(-1, length - 1), num_logit_rows=length)
            for slot, length, context in zip(slots, lengths, contexts, strict=False)
        ]
    )


def _spread_over(total: int, parts: int) -> list[int]:
    """[parts] numbers that add up to `total` and differ by one at most."""
    return [total // parts + (index < total % parts) for index in range(parts)]


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
