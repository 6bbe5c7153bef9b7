"""Ends a step's trees, once they are grown, as the plan says:

    widen     what was seen and not granted, best first, until R == 0: echo, and whatever floors and targets claim
    rerank    growing was free, so the best K_max of all that was seen are paid for, and the rest is dropped
    drop      the plan has nothing verified

What is added is a leaf. Knows no gate and no levels, only what was seen. The rerank is EAGLE-2's (EMNLP 2024).
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from echo_sched.scheduler.account import Account
from echo_sched.scheduler.fairness import REST, Fairness
from echo_sched.scheduler.order import rank_within
from echo_sched.scheduler.plan import Grant, Plan, Selection
from echo_sched.scheduler.seen import NOT_GRANTED, Seen
from echo_sched.scheduler.tally import Tally
from echo_sched.tree import IntArray


class Grown(NamedTuple):
    """The trees of B requests as growing leaves them."""

    plan: Plan
    fairness: Fairness
    shares: IntArray  # [B] most nodes of each request
    seen: Seen
    account: Account
    frontiers: tuple[int, ...]  # nodes above each level that was drafted, the roots first


def finish(grown: Grown, tally: Tally) -> tuple[Selection, Account]:
    """What becomes of the trees, and what is paid for in the end. Counts what it did in `tally`."""
    if not grown.plan.verify:
        return _drop(grown, tally)
    return _rerank(grown, tally) if grown.plan.rerank else _widen(grown, tally)


def _widen(grown: Grown, tally: Tally) -> tuple[Selection, Account]:
    """Spend what is left on what was seen and not granted: on what is claimed, and on the rest if the plan says."""
    plan, account, num_requests = grown.plan, grown.account, len(grown.shares)
    spare = grown.seen.take(grown.seen.node == NOT_GRANTED).best_first(grown.fairness.weight)
    tier = grown.fairness.tiers(spare.offers.request, spare.chance, account)
    allowed = np.full(spare.offers.size, plan.widen)
    if plan.widen_scope == "truncation":
        allowed &= spare.at_truncation
    if plan.shares is not None:  # no transfer: what a truncated request leaves is discarded, for itself too
        allowed &= tally.gate_truncated[spare.offers.request] == 0
    wanted = allowed | (tier < REST)
    chosen = _choose(grown, account, spare.take(wanted), tier[wanted])
    tally.num_widened = np.bincount(chosen.offers.request, minlength=num_requests)
    return Selection(_leaves(chosen, account), None), account


def _rerank(grown: Grown, tally: Tally) -> tuple[Selection, Account]:
    """Pay for the best of all that was seen, as many as pay, and drop the rest."""
    num_requests = len(grown.shares)
    paid = Account(grown.plan, num_requests)
    ordered = grown.seen.best_first(grown.fairness.weight)
    tier = grown.fairness.tiers(ordered.offers.request, ordered.chance, paid)
    kept = _choose(grown, paid, ordered, tier)
    paid.pay(kept.offers.request, kept.depth, kept.chance)
    stay = kept.take(kept.node != NOT_GRANTED)
    tally.num_dropped = grown.account.num_nodes - np.bincount(stay.offers.request, minlength=num_requests)
    leaves = _leaves(kept.take(kept.node == NOT_GRANTED), grown.account)  # numbered behind all that was grown
    request = np.concatenate([stay.offers.request, leaves.offers.request])
    node = np.concatenate([stay.node, leaves.node])
    most = int(node.max(initial=0)) + 1
    nodes, ends = (np.sort(request * most + node) % most).tolist(), np.cumsum(paid.num_nodes).tolist()
    return Selection(leaves, tuple(nodes[low:high] for low, high in pairwise([0, *ends]))), paid


def _drop(grown: Grown, tally: Tally) -> tuple[Selection, Account]:
    """Keep nothing of what was grown."""
    num_requests = len(grown.shares)
    tally.num_dropped = grown.account.num_nodes
    return Selection(Grant.nothing(num_requests), ((),) * num_requests), Account(grown.plan, num_requests)


def _choose(grown: Grown, account: Account, ordered: Seen, tier: IntArray) -> Seen:
    """Of candidates that come best first, what may be had and is worth it beside what is paid: lower tiers first."""
    if grown.plan.shares is not None:
        request = ordered.offers.request
        within = rank_within(request) < (grown.shares - account.num_nodes)[request]
        ordered, tier = ordered.take(within), tier[within]
    rows = np.argsort(tier, kind="stable")[: max(account.room(grown.frontiers), 0)]
    num_claimed = int((tier[rows] < REST).sum())
    return ordered.take(rows[: account.num_bought(ordered.chance[rows], num_claimed, grown.frontiers)])


def _leaves(chosen: Seen, account: Account) -> Grant:
    """Charge nodes that get no children."""
    numbers = account.charge(chosen.offers.request, chosen.depth, chosen.chance)
    return Grant(chosen.offers, numbers, np.zeros(len(account.num_nodes), np.bool_))
