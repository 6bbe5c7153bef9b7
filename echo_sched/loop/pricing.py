"""What steps cost on the machine at hand: the profile's table where it was measured here, else a quick one.

More rows never take less time in truth, only in a noisy measurement, so each column of the forward's table is made
isotonic over N: neighbours that violate the order are pooled to their mean, everything else stays as measured. Steps
survive; nothing is smoothed across one.
"""

import logging
from typing import Any

import numpy as np
from sklearn.isotonic import IsotonicRegression

from echo_sched.engine.measure import CostCurve, device_facts, measure_cost
from echo_sched.loop.decode import DecodeLoop
from echo_sched.loop.drafting_cost import measure_drafting
from echo_sched.provenance import machine
from echo_sched.scheduler.admission import IDLE_CHUNK_FACTOR
from echo_sched.scheduler.cost import CostTable, DraftingCost

logger = logging.getLogger(__name__)

# Rows per tile of matrix units is 16: both sides of the first two steps are measured.
NUM_TOKENS = (1, 2, 4, 8, 16, 17, 24, 32, 33, 48, 64, 96, 128, 192, 256, 384)
CACHED_TOKENS = (256, 2048, 8192)
NUM_REPEATS = 3
# What must be the same for seconds to be worth anything.
IDENTITY = ("processor", "num_cores", "device", "instructions", "torch", "num_threads")


def cost_here(loop: DecodeLoop, known: CostTable | None) -> CostTable:
    """The table to reckon with: `known` if it is from a machine like this one, else measured now. Loop idle."""
    facts = machine() | device_facts(loop.target.device)
    if known is not None and all(known.machine.get(name) == facts.get(name) for name in IDENTITY):
        return known
    if known is not None:
        logger.info("the profile's costs were measured on another machine (%s): measuring anew", known.machine)
    needed = loop.config.max_batch_size + loop.config.k_max + IDLE_CHUNK_FACTOR * loop.config.chunk_tokens
    num_tokens = [rows for rows in NUM_TOKENS if rows <= max(needed, NUM_TOKENS[0])]
    curve = measure_cost(
        loop.target,
        max_model_len=loop.max_model_len,
        num_tokens=num_tokens,
        cached_tokens=CACHED_TOKENS,
        num_repeats=NUM_REPEATS,
    )
    table = cost_table(curve, measure_drafting(loop), facts)
    _log(table)
    return table


def cost_table(curve: CostCurve, drafting: DraftingCost, machine: dict[str, Any]) -> CostTable:
    """From a measured curve to the table that profiles store. `machine` says where it was measured."""
    columns = [
        IsotonicRegression().fit_transform(np.asarray(curve.num_tokens, np.float64), np.asarray(column))
        for column in zip(*curve.seconds, strict=True)
    ]
    seconds = tuple(tuple(float(value) for value in row) for row in zip(*columns, strict=True))
    return CostTable(curve.num_tokens, curve.cached_tokens, seconds, drafting, machine)


def _log(table: CostTable) -> None:
    rows = zip(table.num_tokens, table.seconds, strict=True)
    shown = ", ".join(f"{tokens}: {'/'.join(f'{1000 * second:.1f}' for second in row)}" for tokens, row in rows)
    cached = "/".join(map(str, table.cached_tokens))
    logger.info("milliseconds of a forward by its tokens, with %s tokens cached: %s", cached, shown)
    drafting = table.drafting
    for size, start in zip(drafting.num_requests, drafting.start_seconds, strict=True):
        logger.info("drafting one level for %d: %.1f ms", size, 1000 * start)
    for nodes, level in zip(drafting.num_nodes, drafting.level_seconds, strict=True):
        logger.info("each further level below %d nodes: %.1f ms", nodes, 1000 * level)
    logger.info("catching up: %.3f ms a token", 1000 * drafting.pair_seconds)
