"""What drafts have been good for of late, by how many nodes a request gets: tokens, and the levels drafted for them.

Learned from the candidates of every step that drafts, granted or not; beyond the step's K_max nothing is learned, since
nobody looked there. Knows no price and no clock.
"""

import numpy as np

from echo_sched.scheduler.plan import AllocationReport
from echo_sched.tree import FloatArray

MEMORY = 0.1  # weight of the latest step, at most ...
REQUEST_MEMORY = 0.02  # ... and of each request in it: one request's text is no measure of the next
FIRST_TREES = 32  # nothing is known before so many
# nodes per request at which things are remembered
NODES_PER_REQUEST = np.array([0, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64], np.float64)


class Gains:
    """Ask `of` once `known`."""

    def __init__(self) -> None:
        self._num_steps = self._num_trees = 0
        self._tokens = np.zeros(len(NODES_PER_REQUEST))  # accepted per request, as expected by chances
        self._levels = np.zeros(len(NODES_PER_REQUEST))  # per step

    @property
    def known(self) -> bool:
        return self._num_trees >= FIRST_TREES

    def of(self, nodes: FloatArray, num_requests: int) -> tuple[FloatArray, FloatArray]:
        """Tokens and levels of a step whose requests have so many nodes [n] together: [n] each."""
        per_request = nodes / num_requests
        tokens = num_requests * np.interp(per_request, NODES_PER_REQUEST, self._tokens)
        return tokens, np.interp(per_request, NODES_PER_REQUEST, self._levels)

    def observe(self, report: AllocationReport, num_drafting: int, k_max: int, *, rare: bool = False) -> None:
        """A step with at most `k_max` nodes that drafted, for so many requests. `rare`: there are few such steps."""
        nodes = NODES_PER_REQUEST * num_drafting
        tokens, levels = _best(report, nodes)
        tokens /= num_drafting
        tried = nodes <= k_max if self._num_steps else np.full(len(nodes), True)
        self._num_steps += 1
        self._num_trees += num_drafting
        usual = MEMORY if rare else min(MEMORY, REQUEST_MEMORY * num_drafting)
        fresh = max(usual, 1 / self._num_steps)
        self._tokens = np.where(tried, (1 - fresh) * self._tokens + fresh * tokens, self._tokens)
        self._levels = np.where(tried, (1 - fresh) * self._levels + fresh * levels, self._levels)


def _best(report: AllocationReport, nodes: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Of so many [n] of a step's best candidates: their chances, summed, and the levels that must be drafted for them.

    Beside their own levels they bear those drafted in vain, below the deepest node that was verified.
    """
    order = np.argsort(-report.seen.chance, kind="stable")
    at = np.arange(1 + len(order))
    chances = np.concatenate([[0.0], np.cumsum(report.seen.chance[order])])
    deepest = np.concatenate([[0.0], np.maximum.accumulate(report.seen.depth[order])])
    verified = np.flatnonzero(report.chances.any(axis=0))
    in_vain = report.num_levels - (int(verified[-1]) + 1 if verified.size else 0)
    levels = np.minimum(np.interp(nodes, at, deepest) + in_vain, report.num_levels)
    return np.interp(nodes, at, chances), np.where(nodes > 0, levels, 0.0)
