"""What a step's time is worth: nodes and levels are bought only where they raise the tokens expected per second.

    rate = (B + sum of the verified nodes' chances) / (forward over B + K tokens + drafting)

Drafting takes a start, which has the first level in it, and for each further level what the nodes above it say.

Chances are calibrated acceptance, seconds come from the machine's cost curve. After SmartSpec's goodput (arXiv
2406.14066) and Sequoia's measured verification time (arXiv 2402.12374). Knows no request, no gate and no drafter.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from echo_sched.tree import FloatArray


class Price(NamedTuple):
    """The economy of one step."""

    base_tokens: float  # B: what the step emits without a draft
    verify_seconds: FloatArray  # [K_max + 1] the forward with 0, 1, ... K_max nodes, less that of the prompt chunks
    prompt_seconds: float  # what the prompt chunks add to it, whether anybody drafts or not
    start_seconds: float  # of a step that drafts one level
    level_seconds: FloatArray  # [F + 1] of each further one below 0, 1, ... F nodes; below more of them as below F
    continuation: FloatArray  # [max_depth] share of a node's chance that its children at that depth keep
    max_seconds: float = np.inf  # of forward and drafting together

    def drafting_seconds(self, frontiers: Sequence[int]) -> float:
        """Of a step with levels below so many nodes each, the roots first; nothing where there are none."""
        if not frontiers:
            return 0.0
        most = len(self.level_seconds) - 1
        return self.start_seconds + sum(float(self.level_seconds[min(nodes, most)]) for nodes in frontiers[1:])

    def most_nodes(self, drafting: float) -> int:
        """How many nodes fit into `max_seconds` beside so many seconds of drafting; -1: not even that."""
        if self.max_seconds == np.inf:
            return len(self.verify_seconds) - 1
        fits = self.verify_seconds + drafting <= self.max_seconds
        return int(np.flatnonzero(fits)[-1]) if fits.any() else -1

    def best_count(self, gained: float, chances: FloatArray, num_nodes: int, drafting: float) -> int:
        """How many of further candidates, in their order, raise the rate most; the fewest of equals.

        gained: chances of the `num_nodes` nodes that are verified anyway, summed. chances [C]. drafting: its seconds.
        """
        return int(self._rates(gained, chances, num_nodes, drafting).argmax())

    def pays(
        self, gained: float, optional: FloatArray, frontier: FloatArray, num_nodes: int, frontiers: Sequence[int]
    ) -> bool:
        """Whether drafting the level below a frontier can be hoped to raise the rate.

        optional [C]: chances of candidates that may yet be chosen or left; frontier [F]: of nodes whose children would
        be drafted; frontiers: how many nodes the levels drafted so far are below. What a node's children keep of its
        chance is counted as one candidate.
        """
        children = frontier * self.continuation[min(len(frontiers), len(self.continuation) - 1)]
        before, after = (self.drafting_seconds(levels) for levels in (frontiers, [*frontiers, frontier.size]))
        now = self._rates(gained, _descending(optional), num_nodes, before).max()
        then = self._rates(gained, _descending(np.concatenate([optional, children])), num_nodes, after).max()
        return bool(then > now)

    def _rates(self, gained: float, chances: FloatArray, num_nodes: int, drafting: float) -> FloatArray:
        """[C + 1] tokens per second with the first 0, 1, ... of the candidates; those that do not fit are left out."""
        verify = self.verify_seconds[num_nodes : num_nodes + len(chances) + 1]
        rates = np.empty(len(verify))
        rates[0] = 0.0
        np.cumsum(chances[: len(verify) - 1], out=rates[1:])
        rates += self.base_tokens + gained
        rates /= verify + drafting
        return rates


def _descending(values: FloatArray) -> FloatArray:
    return np.sort(values)[::-1]
