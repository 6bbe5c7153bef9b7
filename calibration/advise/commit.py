"""What keeping an accepted path costs: seconds of moving its KV to the front, by its length, in place or scattered.

A chain's accepted nodes lie where they are to stay; a tree's lie among rejected ones. Timed on the idle cache itself.
"""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from echo_sched.engine.kv import KVCache

NUM_REPEATS = 21
STRIDE = 2  # of a scattered path: every second row is somebody else's


def paths(length: int) -> dict[str, list[int]]:
    """Rows of a root and `length` accepted nodes."""
    return {
        "contiguous": list(range(length + 1)),
        "scattered": [0, *(STRIDE * number for number in range(1, length + 1))],
    }


def measure_commit(
    kv: KVCache,
    device: torch.device,
    *,
    num_requests: int,
    lengths: Sequence[int],
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, dict[str, Any]]:
    """By accepted length and layout: tokens moved in a step, and microseconds per accepted token. All slots free."""
    assert kv.num_free == kv.num_slots and max(lengths) * STRIDE < kv.max_len
    cases = [(length, layout) for length in lengths for layout in paths(length)]
    seconds: dict[tuple[int, str], list[float]] = {case: [] for case in cases}
    moved: dict[tuple[int, str], int] = {}
    order = random.Random(0)
    for _ in range(1 + NUM_REPEATS):  # the first round warms up
        for length, layout in order.sample(cases, len(cases)):
            slots = [kv.allocate() for _ in range(min(num_requests, kv.num_slots))]
            rows = paths(length)[layout]
            start = clock()
            moved[length, layout] = kv.commit([(slot, rows) for slot in slots])
            if device.type != "cpu":  # elsewhere a move returns before it is done
                torch.accelerator.synchronize(device)
            seconds[length, layout].append((clock() - start) / (len(slots) * length))
            for slot in slots:
                kv.free(slot)
    return {
        str(length): {
            layout: {
                "num_moved": moved[length, layout],
                "microseconds_per_accepted_token": 1e6 * statistics.median(seconds[length, layout][1:]),
            }
            for layout in paths(length)
        }
        for length in lengths
    }
