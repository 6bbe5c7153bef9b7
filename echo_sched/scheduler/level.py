"""The values of the deepest nodes that were granted, by which their children are judged."""

from typing import NamedTuple

import numpy as np

from echo_sched.tree import ROOT, FloatArray, IntArray, Offers


class Level(NamedTuple):
    """Request i's nodes [first[i], end[i]); values [F] by request, and there by node."""

    first: IntArray  # [B]
    end: IntArray  # [B]
    path_logp: FloatArray
    chance: FloatArray

    @staticmethod
    def roots(num_requests: int) -> "Level":
        first = np.full(num_requests, ROOT)
        return Level(first, first + 1, np.zeros(num_requests), np.ones(num_requests))

    @staticmethod
    def of(granted: Offers, node: IntArray, chance: FloatArray, end: IntArray) -> "Level":
        """The level of these nodes [G], which are the last before `end`."""
        first = end - np.bincount(granted.request, minlength=len(end))
        level = Level(first, end, np.zeros(granted.size), np.zeros(granted.size))
        row = level._row(granted.request, node)
        level.path_logp[row], level.chance[row] = granted.path_logp, chance
        return level

    def rows(self, candidates: Offers) -> IntArray:
        """[C] where each candidate's parent is among the values."""
        request, parent = candidates.request, candidates.parent
        inside = (parent >= self.first[request]) & (parent < self.end[request])
        assert inside.all(), "parents were granted at the depth above"
        return self._row(request, parent)

    def _row(self, request: IntArray, node: IntArray) -> IntArray:
        counts = self.end - self.first
        begins = np.cumsum(counts) - counts
        row: IntArray = begins[request] + node - self.first[request]
        return row
