"""What siblings other than the likeliest bring: counts of one step, from what the drafter offered and what was kept.

Knows step records of trees that are verified as they grew (no reranking: that numbers nodes anew).
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from echo_sched.types import StepRecord


@dataclass
class Siblings:
    """Nodes of which a likelier sibling was verified too, and those without."""

    num_first: int = 0
    num_first_accepted: int = 0
    num_other: int = 0
    num_other_accepted: int = 0

    def take(self, record: StepRecord) -> None:
        """Add a step of a recording loop."""
        if record.offers is None or not record.num_verified:
            return
        accepted: dict[str, list[bool]] = defaultdict(list)  # by request, in the order of its nodes
        for reading in record.node_readings:
            accepted[reading.request_id].append(reading.accepted)
        offers, nodes = record.offers.offers, record.offers.node
        granted = np.flatnonzero(nodes >= 0)
        keys = (offers.token, -offers.path_logp, offers.parent, offers.request)
        order = granted[np.lexsort([key[granted] for key in keys])]
        family = np.stack([offers.request[order], offers.parent[order]])
        first = np.any(np.diff(family, axis=1, prepend=-2) != 0, axis=0)  # no request and no parent is -2
        for row, is_first in zip(order.tolist(), first.tolist(), strict=True):
            kept = accepted[record.offers.request_ids[offers.request[row]]][nodes[row]]
            if is_first:
                self.num_first += 1
                self.num_first_accepted += kept
            else:
                self.num_other += 1
                self.num_other_accepted += kept

    @property
    def other_acceptance(self) -> float | None:
        """Share of the non-first siblings that were accepted; None where there were none."""
        return self.num_other_accepted / self.num_other if self.num_other else None
