"""What steps cost on the machine at hand: the profile's table where it was measured here, else a quick one.

More rows never take less time in truth, only in a noisy measurement, so each context's column is made isotonic over N:
neighbours that violate the order are pooled to their mean, everything else stays as measured. Steps survive; nothing is
smoothed across one.
"""

import logging
from typing import Any

import numpy as np
from sklearn.isotonic import IsotonicRegression

from echo_sched.engine.measure import CostCurve
from echo_sched.loop.decode import DecodeLoop
from echo_sched.provenance import machine
from echo_sched.scheduler.cost import CostTable

logger = logging.getLogger(__name__)

NUM_TOKENS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
CONTEXTS = (256,)
NUM_REPEATS = 3
# What must be the same for seconds to be worth anything.
IDENTITY = ("processor", "num_cores", "device", "instructions", "torch", "num_threads")


def cost_here(loop: DecodeLoop, known: CostTable | None, draft_level_seconds: float) -> CostTable:
    """The table to reckon with: `known` if it is from a machine like this one, else measured now. Loop idle."""
    facts = machine() | loop.machine_facts
    if known is not None and all(known.machine.get(name) == facts.get(name) for name in IDENTITY):
        return known
    if known is not None:
        logger.info("the profile's costs were measured on another machine (%s): measuring anew", known.machine)
    needed = loop.config.max_batch_size + loop.config.k_max + loop.config.chunk_tokens
    num_tokens = [rows for rows in NUM_TOKENS if rows <= max(needed, NUM_TOKENS[0])]
    curve = loop.measure_cost(num_tokens=num_tokens, contexts=CONTEXTS, num_repeats=NUM_REPEATS)
    table = cost_table(curve, draft_level_seconds, facts)
    shown = ", ".join(f"{rows}: {1000 * row[0]:.1f}" for rows, row in zip(table.num_tokens, table.seconds, strict=True))
    logger.info("milliseconds of a forward by tokens: %s; of a draft level: %.1f", shown, 1000 * draft_level_seconds)
    return table


def cost_table(curve: CostCurve, draft_level_seconds: float, machine: dict[str, Any]) -> CostTable:
    """From a measured curve to the table that profiles store. `machine` says where it was measured."""
    columns = [
        IsotonicRegression().fit_transform(np.asarray(curve.num_tokens, np.float64), np.asarray(column))
        for column in zip(*curve.seconds, strict=True)
    ]
    seconds = tuple(tuple(float(value) for value in row) for row in zip(*columns, strict=True))
    return CostTable(
        curve.num_tokens, curve.context, seconds, draft_level_seconds, machine, requests=curve.num_requests
    )
