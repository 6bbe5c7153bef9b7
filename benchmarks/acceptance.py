"""How good the drafts of a trial were: how deep they held, how much of that loops gave away, what confidence is worth.

A verify step is one request's part of a step in which its root was verified. A request's first token comes from its
prompt, so it is output, but of no verify step. Nodes are known only where the engine records them. Knows nothing of
arms, other trials or files.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.loops import LoopDetector
from benchmarks.reliability import Reliability
from echo_sched.types import NodeReading, StepRecord, TokenEvent


@dataclass
class Lengths:
    """Verify steps and the tokens they emitted."""

    num_steps: int = 0
    num_tokens: int = 0

    def add(self, num_tokens: int) -> None:
        self.num_steps += 1
        self.num_tokens += num_tokens

    @property
    def mean(self) -> float | None:
        return _share(self.num_tokens, self.num_steps)


class Acceptance:
    """Sums over the steps of a trial, fed with every step in order; what it holds grows with open requests only."""

    def __init__(self) -> None:
        self._open: dict[str, LoopDetector] = {}  # by request, from its first token to its last
        self._num_tokens = 0
        self._num_tokens_in_loops = 0
        self._lengths = Lengths()
        self._lengths_outside_loops = Lengths()
        # depth -> verify steps
        self._num_with_node = Counter[int]()
        self._num_reached = Counter[int]()
        self._num_tried = Counter[int]()
        self._nodes = Reliability()
        self._confidence = Reliability()

    def take(self, record: StepRecord, events: Sequence[TokenEvent]) -> None:
        """Add a step: its record, and what it gave every request."""
        trees: dict[str, list[NodeReading]] = defaultdict(list)
        for reading in record.node_readings:
            trees[reading.request_id].append(reading)
        for event in events:
            request_id = event.request.request_id
            is_first = request_id not in self._open
            detector = self._open.setdefault(request_id, LoopDetector())
            num_in_loops = sum(detector.push(token) for token in event.token_ids)
            self._num_tokens += len(event.token_ids)
            self._num_tokens_in_loops += num_in_loops
            if not is_first:
                self._lengths.add(len(event.token_ids))
                if not num_in_loops:
                    self._lengths_outside_loops.add(len(event.token_ids))
                self._count_depths(trees[request_id])
            if event.finish is not None:
                del self._open[request_id]
        self._nodes.add(record.node_readings)
        self._confidence.add(best_ranked(record.node_readings))

    def _count_depths(self, tree: Sequence[NodeReading]) -> None:
        num_accepted = sum(reading.accepted for reading in tree)
        for depth in {reading.depth for reading in tree}:
            self._num_with_node[depth] += 1
            self._num_tried[depth] += num_accepted >= depth - 1
            self._num_reached[depth] += num_accepted >= depth

    def summary(self) -> dict[str, Any]:
        """`length`: acceptance length over all verify steps, and over those none of whose tokens are inside loops.

        `share_in_loops`: of all output tokens. Anything that has nothing to be a share of is None.
        `reliability`: of all verified `nodes`, and of each tree's best-ranked node per depth, the gate's `confidence`.
        """
        return {
            "num_verify_steps": self._lengths.num_steps,
            "length": self._lengths.mean,
            "num_verify_steps_outside_loops": self._lengths_outside_loops.num_steps,
            "length_outside_loops": self._lengths_outside_loops.mean,
            "num_tokens_in_loops": self._num_tokens_in_loops,
            "share_in_loops": _share(self._num_tokens_in_loops, self._num_tokens),
            "by_depth": {str(depth): self._at_depth(depth) for depth in sorted(self._num_with_node)},
            "reliability": {"nodes": self._nodes.summary(), "confidence": self._confidence.summary()},
        }

    def _at_depth(self, depth: int) -> dict[str, Any]:
        """Counts of verify steps: the tree had a node at this depth; the accepted path reached it; it could have, since
        it reached the depth above and the tree went on (`num_tried`).

        What lies behind the end of a request that ends inside its accepted path counts as not reached.
        """
        num_reached, num_tried = self._num_reached[depth], self._num_tried[depth]
        return {
            "num_with_node": self._num_with_node[depth],
            "num_reached": num_reached,
            "share_reached": _share(num_reached, self._lengths.num_steps),
            "num_tried": num_tried,
            "conditional_share": _share(num_reached, num_tried),
        }


def best_ranked(readings: Iterable[NodeReading]) -> list[NodeReading]:
    """Of each request and depth of one step the node with the highest path logprob, the first of equals."""
    best: dict[tuple[str, int], NodeReading] = {}
    for reading in readings:
        found = best.setdefault((reading.request_id, reading.depth), reading)
        if reading.path_logp > found.path_logp:
            best[reading.request_id, reading.depth] = reading
    return list(best.values())


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
