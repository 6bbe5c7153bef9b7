"""All pools of a trace end to end in flat arrays, so that a step's children are found at once.

    rows      [ pool 0: children of its root | of its node 0 | ... | pool 1: children of its root | ... ]

Rows are candidates; siblings are neighbours, the likeliest first.
"""

import numpy as np

from calibration.pool import NO_NODE, Pool
from calibration.trace import OfferTrace
from echo_sched.tree import ROOT, IntArray


class RecordedOffers:
    """A trace to draft from."""

    def __init__(self, trace: OfferTrace) -> None:
        pools = [_by_parent(pool) for of_request in trace.pools for pool in of_request]
        self.max_children = trace.header.branching
        self.max_depth = trace.header.max_depth
        self._first_pool = np.cumsum([0, *map(len, trace.pools)])  # [requests + 1]
        self._start = np.cumsum([0, *(len(pool.depth) for pool in pools)])  # [pools + 1] first row of each
        self.num_accepted = np.array([pool.num_accepted for pool in pools], np.int64)  # [pools] most, by any tree
        joined = Pool.concat(pools)
        self.depth, self.token, self.path_logp = joined.depth, joined.token, joined.path_logp
        self.accepted = joined.accepted
        self.drafted = joined.node != NO_NODE  # by the recorded drafter, or it might have been
        self.stops = np.isin(joined.token, trace.header.stop_ids)
        families = [_families(pool) for pool in pools]
        self._root_first = self._start[:-1] + np.array([first[0] for first, _ in families], np.int64)  # [pools]
        self._root_count = np.array([count[0] for _, count in families], np.int64)
        none = np.zeros(0, np.int64)
        starts = self._start[:-1].tolist()
        self._first = np.concatenate(
            [none, *(first[1:] + start for (first, _), start in zip(families, starts, strict=True))]
        )
        self._count = np.concatenate([none, *(count[1:] for _, count in families)])

    @property
    def num_pools(self) -> int:
        return len(self._root_first)

    def pool_of(self, request: int, num_output_tokens: int) -> int:
        """Which pool a request drafts from when so many tokens are out."""
        pool = int(self._first_pool[request]) + num_output_tokens - 1
        assert self._first_pool[request] <= pool < self._first_pool[request + 1], "the answer is not at its end"
        return pool

    def rows_of(self, pool: int) -> IntArray:
        return np.arange(self._start[pool], self._start[pool + 1])

    def children(self, pools: IntArray, rows: IntArray, at_most: int) -> tuple[IntArray, IntArray]:
        """The likeliest children of each row [F], or of the root of `pools` [F] where the row is ROOT.

        Returns their rows, and how many of them each has [F].
        """
        first, count = self._root_first[pools], self._root_count[pools]
        inner = rows != ROOT
        first[inner], count[inner] = self._first[rows[inner]], self._count[rows[inner]]
        count = np.minimum(count, at_most)
        within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        return np.repeat(first, count) + within, count


def _by_parent(pool: Pool) -> Pool:
    return pool.take(np.lexsort((pool.token, -pool.path_logp, pool.parent)))


def _families(pool: Pool) -> tuple[IntArray, IntArray]:
    """First child and number of children of the root, and then of each candidate."""
    owner = np.concatenate([[ROOT], pool.node])
    first = np.searchsorted(pool.parent, owner, "left")
    return first, np.searchsorted(pool.parent, owner, "right") - first
