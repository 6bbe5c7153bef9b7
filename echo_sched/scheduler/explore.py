"""Explored steps: a small share of steps drafts without a gate, so that it stays known what the gate would refuse.

A gated tree says nothing about what was truncated, and a budget or a price that serves the confident first says as
little. So an explored step grows full trees, gated by nothing and priced by nothing, for as many requests as K_max
pays for, and none for the others; who gets one is drawn by lot. What a step may take at most (max_step_stretch) holds.
Knows plans and loads, no policy.
"""

from dataclasses import replace
from hashlib import blake2b

import numpy as np

from echo_sched.scheduler.plan import Load, Plan


def explores(share: float, seed: int, step: int) -> bool:
    """Whether a step is one of the `share` [0, 1] that explore: a fixed function of (seed, step)."""
    digest = blake2b(b"%d %d" % (seed, step), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


def ungated(plan: Plan, load: Load, seed: int) -> Plan:
    """The plan of an explored step in place of `plan`, within the same K_max.

    Trees are as wide as planned and as deep as the deepest depth that the gate reads, or as K_max and the bound on a
    step's time let one be. `plan` itself where its gate reads nothing or there is no room for a node: there is nothing
    to learn, or nothing to learn it with.
    """
    read = [depth for depth, threshold in enumerate(plan.thresholds, start=1) if threshold is not None]
    deepest = min(max(read, default=0), plan.k_max)
    depth = next((depth for depth in range(deepest, 0, -1) if _room(plan, depth) >= depth), 0)
    if depth == 0 or load.num_requests == 0:
        return plan
    room = _room(plan, depth)
    widths = tuple(min(width, room // depth) for width in plan.widths[:depth])
    tree_size = sum(widths)
    chosen = np.random.default_rng((seed, load.step)).permutation(load.num_requests)[: room // tree_size]
    shares = np.zeros(load.num_requests, np.int64)
    shares[chosen] = tree_size
    return replace(
        plan,
        max_depth=depth,
        target_depth=min(plan.target_depth, depth),
        widths=widths,
        thresholds=(None,) * depth,
        children=None,
        truncation_rates=None,
        shares=tuple(shares.tolist()),
        widen=False,
        rerank=False,
        price=None,
        max_drafting=None,  # a probe's choice, the shortest requests, is none by lot
        fairness=None,
        explored=True,
    )


def _room(plan: Plan, num_levels: int) -> int:
    """Nodes that a step may verify beside the drafting of so many levels, be they as wide as K_max allows."""
    price = plan.price
    return plan.k_max if price is None else price.most_nodes(price.drafting_seconds([plan.k_max] * num_levels))
