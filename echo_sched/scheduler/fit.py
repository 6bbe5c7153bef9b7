"""What gate readings say: how well confidence predicts acceptance at each depth, and the checkpoints that follow.

The question of a gate at depth d is "will the accepted path reach d?". Its evidence is the readings of ungated trees:
one confidence and one answer per step, request and depth. Readings of one prompt resemble each other, so prompts, never
steps, are what is split and what is resampled:

    AUC, drop         all prompts, with intervals; nothing here is fitted to them
    threshold         Youden's J on the fitting half of the prompts
    held-out J        the same threshold on the other half; it must still separate there

Two rules make a depth a checkpoint: `auc`, where confidence surely tells; `drop`, where acceptance surely falls. Knows
nothing of models, engines or files.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from echo_sched.scheduler.depth_fit import (
    DEFAULT_AUC_CUT,
    DEFAULT_DROP_CUT,
    CheckpointRule,
    Cut,
    DepthFit,
    conditional_shares,
    fit_depth,
    rejection,
    with_drop,
)
from echo_sched.scheduler.separation import Column
from echo_sched.tree import BoolArray, IntArray
from echo_sched.types import GateReading

NUM_RESAMPLES = 1000
TARGET_REACH = 0.3  # the base tree goes as deep as at least this share of all trees is accepted


class Fit(NamedTuple):
    """Everything a profile needs from the readings."""

    depths: tuple[DepthFit, ...]  # ascending, every depth with readings
    target_depth: int
    typical_depth: float
    checkpoints: tuple[DepthFit, ...]
    no_checkpoint_reason: str | None
    fitting: frozenset[str]  # prompts of the fitting half; a threshold is fitted to no other


def fit(
    readings: Sequence[GateReading],
    *,
    max_depth: int,
    checkpoint_rule: CheckpointRule = "auc",
    auc_cut: float = DEFAULT_AUC_CUT,
    drop_cut: float = DEFAULT_DROP_CUT,
    seed: int = 0,
    num_resamples: int = NUM_RESAMPLES,
) -> Fit:
    """Fit one profile's numbers to the readings of ungated trees that may reach `max_depth`.

    `request_id` names the prompt: one request per prompt. The result depends on `seed` and on the set of readings, not
    on their order.
    """
    assert readings, "the caller checks that something was read"
    names = sorted({reading.request_id for reading in readings})
    random = np.random.default_rng(seed)
    fitting = np.zeros(len(names), np.bool_)
    fitting[random.permutation(len(names))[: (len(names) + 1) // 2]] = True
    resamples = random.multinomial(len(names), np.full(len(names), 1 / len(names)), size=num_resamples)
    columns = _by_depth(readings, {name: index for index, name in enumerate(names)})
    cut = Cut(checkpoint_rule, auc_cut if checkpoint_rule == "auc" else drop_cut)
    depths = _fit_depths(columns, fitting, resamples, cut)
    target = target_depth(depths, max_depth)
    return Fit(
        depths=depths,
        target_depth=target,
        typical_depth=typical_depth(depths),
        checkpoints=tuple(depth for depth in depths if depth.rejection is None),
        no_checkpoint_reason=_no_checkpoint_reason(depths, target),
        fitting=frozenset(name for name, fits in zip(names, fitting, strict=True) if fits),
    )


def target_depth(depths: Sequence[DepthFit], max_depth: int) -> int:
    """d0: the deepest depth that at least TARGET_REACH of the steps with offers reached; at least 1, below `max_depth`.

    Unconditional: a tree whose drafter had nothing to offer at d did not reach d.
    """
    num_steps = _num_steps(depths)
    reached = [fit.depth for fit in depths if fit.acceptance * fit.n >= TARGET_REACH * num_steps]
    return min(max(reached, default=1), max(1, max_depth - 1))


def typical_depth(depths: Sequence[DepthFit]) -> float:
    """D_typ: mean number of accepted nodes over the steps with offers, at least 1.

    An accepted path passes every depth on its way, so the sum over depths of "reached d" is its length.
    """
    return max(1.0, sum(fit.acceptance * fit.n for fit in depths) / _num_steps(depths))


def _fit_depths(
    columns: Mapping[int, Column], fitting: BoolArray, resamples: IntArray, cut: Cut
) -> tuple[DepthFit, ...]:
    """From the shallowest down, since the drop compares a depth with the one above."""
    depths: list[DepthFit] = []
    passed = np.ones(len(resamples))  # conditional acceptance at the depth above: the root is always accepted
    for depth in sorted(columns):
        above = depths[-1].conditional.acceptance if depths else 1.0
        shares = conditional_shares(columns[depth], resamples)
        fitted = fit_depth(depth, columns[depth], fitting, resamples)
        fitted = with_drop(fitted, above, passed - shares)
        found = rejection(fitted, len(np.unique(columns[depth].prompt)), cut)
        depths.append(fitted._replace(rejection=found))
        passed = shares
    return tuple(depths)


def _no_checkpoint_reason(depths: Sequence[DepthFit], target: int) -> str | None:
    """None when a middle depth (neither the root gate's nor the target depth) is a checkpoint."""
    middle = [fit for fit in depths if fit.depth not in (1, target)]
    if any(fit.rejection is None for fit in middle):
        return None
    if not middle:
        return f"no middle depth was measured (the root gate is depth 1, the target depth {target})"
    return "no middle depth qualifies: " + "; ".join(f"depth {fit.depth}: {fit.rejection}" for fit in middle)


def _num_steps(depths: Sequence[DepthFit]) -> int:
    """Steps, over all requests, that had offers at all: every tree begins at depth 1."""
    return max(fit.n for fit in depths)


def _by_depth(readings: Sequence[GateReading], prompt_index: dict[str, int]) -> dict[int, Column]:
    groups: dict[int, list[GateReading]] = {}
    on_path = {(reading.request_id, reading.step, reading.depth) for reading in readings if reading.accepted}
    for reading in sorted(readings, key=lambda reading: (reading.request_id, reading.step, reading.depth)):
        groups.setdefault(reading.depth, []).append(reading)
    return {
        depth: Column(
            confidence=np.array([reading.confidence for reading in group], np.float64),
            accepted=np.array([reading.accepted for reading in group], np.bool_),
            prompt=np.array([prompt_index[reading.request_id] for reading in group], np.int64),
            reached=np.array(
                [depth == 1 or (reading.request_id, reading.step, depth - 1) in on_path for reading in group]
            ),
        )
        for depth, group in groups.items()
    }
