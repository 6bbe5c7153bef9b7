"""What a run of the proof compared and what it came across: counted while loops work, shown as one line of a table."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from torch import Tensor

from echo_sched.engine.accept import Walk, accept
from echo_sched.engine.reference import ReferenceResult
from echo_sched.loop import DecodeLoop
from echo_sched.loop import drawing as drawing_module
from echo_sched.types import Request, TokenEvent

MECHANISMS = ("truncations", "deepenings", "widenings", "transfers")
STOPS = ("stops inside runs, string", "stops inside runs, id", "stops inside runs, length")


@dataclass
class Counts:
    """`named` counts are columns of the summary. A walk is one request's draws of one step."""

    named: Counter[str] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)  # accepted nodes of a walk -> walks
    ranks: Counter[int] = field(default_factory=Counter)  # place among siblings by path logprob -> accepted nodes
    said: dict[str, str] = field(default_factory=dict)

    @property
    def accepted_by_depth(self) -> list[int]:
        deepest = max(self.lengths, default=0)
        return [sum(n for length, n in self.lengths.items() if length >= depth) for depth in range(1, deepest + 1)]

    @property
    def num_later_siblings(self) -> int:
        return sum(num for rank, num in self.ranks.items() if rank > 0)

    def take_walk(self, walk: Walk, nodes: Sequence[int]) -> None:
        self.lengths[len(nodes)] += 1
        for node in nodes:
            family = [i for i, parent in enumerate(walk.tree.parents) if parent == walk.tree.parents[node]]
            self.ranks[sorted(family, key=lambda i: -walk.tree.path_logps[i]).index(node)] += 1

    def take_step(self, loop: DecodeLoop, events: Sequence[TokenEvent]) -> None:
        """After a step that did something."""
        record = loop.last_record
        assert record is not None
        found = (
            sum(record.truncated.values()),
            sum(record.deepened.values()),
            record.num_widened,
            record.num_transferred,
        )
        self.named.update(dict(zip(MECHANISMS, found, strict=True)))
        for event in events:
            if event.finish is not None and event.finish.type != "abort" and len(event.token_ids) > 1:
                matched = event.finish.matched
                kind = "length" if matched is None else "string" if isinstance(matched, str) else "id"
                self.named[f"stops inside runs, {kind}"] += 1

    def compare(self, request: Request, expected: ReferenceResult) -> None:
        """Every token and the finish. Fails at the first difference."""
        same = (request.output_ids, request.finish) == (expected.output_ids, expected.finish)
        self.named.update({"requests compared": 1, "tokens": len(request.output_ids), "mismatches": int(not same)})
        assert request.output_ids == expected.output_ids, f"{request}: other tokens than {expected}"
        assert request.finish == expected.finish, f"{request}: other finish than {expected}"

    def report(self, **said: object) -> None:
        """Further columns of the summary, for what is no count."""
        self.said.update({name: str(value) for name, value in said.items()})

    def row(self) -> dict[str, str]:
        """The summary, column by column."""
        row = {name: str(count) for name, count in self.named.items()}
        if self.lengths:
            row["accepted by depth"] = " ".join(map(str, self.accepted_by_depth))
            row["later siblings accepted"] = str(self.num_later_siblings)
        return row | self.said


@contextmanager
def watched(counts: Counts) -> Iterator[None]:
    """Counts the walks of every loop inside."""

    def watching(logits: Tensor, walks: Sequence[Walk], *rest: Any) -> list[list[int]]:
        accepted = accept(logits, walks, *rest)
        for walk, nodes in zip(walks, accepted, strict=True):
            counts.take_walk(walk, nodes)
        return accepted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing_module, "accept", watching)
        yield
