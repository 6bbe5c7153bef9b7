"""What the drafter offered each request, step by step, and what became of it once the answer is known.

Knows step records and answers; not how the trees were grown, nor what is made of the pools.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from calibration.pool import Pool, labelled
from echo_sched.tree import FloatArray, IntArray
from echo_sched.types import Request, StepOffers


class Columns(NamedTuple):
    """What one request was offered in one step, before the answer is known. Arrays [C]."""

    depth: IntArray
    parent: IntArray
    token: IntArray
    path_logp: FloatArray
    node: IntArray


class PlacedPool(NamedTuple):
    """Offers to a request of which `position` tokens were out."""

    position: int
    pool: Pool


class OfferLog:
    """Collects while requests run; `pools` once they are finished."""

    def __init__(self) -> None:
        self._columns: dict[str, list[tuple[int, Columns]]] = {}

    def add(self, step: StepOffers, positions: Mapping[str, int]) -> None:
        """Give each decoding request what it was offered. `positions`: output tokens of each before the step."""
        for index, request_id in enumerate(step.request_ids):
            mine = np.flatnonzero(step.offers.request == index)
            offers = step.offers.take(mine)
            columns = Columns(step.depth[mine], offers.parent, offers.token, offers.path_logp, step.node[mine])
            self._columns.setdefault(request_id, []).append((positions[request_id], columns))

    def pools(self, requests: Sequence[Request]) -> tuple[tuple[PlacedPool, ...], ...]:
        """[requests][steps in which it decoded], labelled by the answers."""
        return tuple(
            tuple(
                PlacedPool(position, labelled(*columns, request.output_ids[position:]))
                for position, columns in self._columns.get(request.request_id, ())
            )
            for request in requests
        )
