"""The gate: at a checkpoint depth, reads the candidates' confidence and says which requests are truncated before it.

Knows one depth of one step. Does not know budgets, nor which depths are checkpoints.
"""

from typing import Literal, NamedTuple

import numpy as np

from echo_sched.tree import BoolArray, FloatArray, Offers

GateScope = Literal["request", "branch"]


class GateRule(NamedTuple):
    """How one depth is read. With a `truncation_rate` (random gate) chance decides and confidence is only reported."""

    threshold: float
    scope: GateScope
    truncation_rate: float | None = None
    draw_key: tuple[int, ...] = ()


class GateDecision(NamedTuple):
    """What the gate read at one depth. B requests, C candidates."""

    present: BoolArray  # [B] has candidates
    confidence: FloatArray  # [B] c = exp(max S) over the candidates; 0 without any
    unsure: BoolArray  # [B] the threshold alone would truncate the request
    truncated: BoolArray  # [B]
    stopped: BoolArray  # [C] candidates that are not offered: their request is truncated or their branch stopped


def read_gate(rule: GateRule | None, offers: Offers, frontier_logp: FloatArray, num_requests: int) -> GateDecision:
    """Read the candidates of one depth; `rule` None lets everybody through and only reports the confidence.

    `frontier_logp` [C] is S of the frontier node that each candidate's branch is judged by. Scope "request": truncated
    iff `c <= threshold`. Scope "branch": branches with `exp(S) <= threshold` stop one by one, and the request is
    truncated when none is left. The random gate truncates whole requests in either scope: request i's draw is the i-th
    number of the stream that `draw_key` seeds, so it depends on nothing that the confidence depends on. After ECHO
    (arXiv 2604.09603), as reported.
    """
    best = np.full(num_requests, -np.inf)
    np.maximum.at(best, offers.request, offers.path_logp)
    present = np.zeros(num_requests, np.bool_)
    present[offers.request] = True
    confidence = np.exp(best)
    if rule is None:
        nobody = np.zeros(num_requests, np.bool_)
        return GateDecision(present, confidence, nobody, nobody, np.zeros(offers.size, np.bool_))
    if rule.scope == "request":
        stopped = (confidence <= rule.threshold)[offers.request]
    else:
        stopped = np.exp(frontier_logp) <= rule.threshold
    going = np.zeros(num_requests, np.bool_)
    going[offers.request[~stopped]] = True
    unsure = present & ~going
    if rule.truncation_rate is None:
        return GateDecision(present, confidence, unsure, unsure, stopped)
    draws = np.random.default_rng(rule.draw_key).random(num_requests)
    truncated = present & (draws < rule.truncation_rate)
    return GateDecision(present, confidence, unsure, truncated, truncated[offers.request])
