"""One arm at one concurrency, once: what it took and what its steps did. Knows no other arm."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from calibration.advise.siblings import Siblings
from echo_sched.closed_loop import Engine, serve_closed
from echo_sched.types import Request, StepRecord, TokenEvent


@dataclass
class Counts:
    """Sums over steps. Two runs of an arm on the same prompts count the same where numerics let them."""

    num_steps: int = 0
    num_root_steps: int = 0  # roots verified
    num_emitted: int = 0  # by verify steps
    num_levels: int = 0
    num_dropped: int = 0  # grown, and pruned before verification
    num_verified: int = 0
    num_accepted: int = 0
    siblings: Siblings = field(default_factory=Siblings)
    num_reached: Counter[int] = field(default_factory=Counter)  # depth -> verify steps whose accepted path reached it

    def take(self, record: StepRecord, num_first: int) -> None:
        """Add a step, `num_first` of whose tokens came from prompts."""
        self.num_steps += 1
        self.num_root_steps += record.num_decoding
        self.num_emitted += record.num_emitted - num_first
        self.num_levels += record.num_levels
        self.num_dropped += record.num_dropped
        self.num_verified += record.num_verified
        self.num_accepted += record.num_accepted
        self.num_reached.update(reading.depth for reading in record.node_readings if reading.accepted)

    def to_json(self) -> dict[str, Any]:
        siblings, roots = self.siblings, self.num_root_steps
        return {
            "num_steps": self.num_steps,
            "num_levels": self.num_levels,
            "num_dropped_nodes": self.num_dropped,
            "num_verified_nodes": self.num_verified,
            "num_accepted_nodes": self.num_accepted,
            "acceptance_length": self.num_emitted / roots if roots else None,
            "draft_utilisation": self.num_accepted / self.num_verified if self.num_verified else None,
            "num_other_siblings": siblings.num_other,
            "num_other_siblings_accepted": siblings.num_other_accepted,
            "other_sibling_acceptance": siblings.other_acceptance,
            "share_reached": {str(depth): count / roots for depth, count in sorted(self.num_reached.items())},
        }


@dataclass(frozen=True)
class Trial:
    duration: float  # seconds
    num_output_tokens: int
    gap_p95: float  # seconds between two outputs of a request
    counts: Counts
    phase_seconds: dict[str, float]

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.num_output_tokens / self.duration


def run_trial(engine: Engine, requests: Sequence[Request], concurrency: int, *, siblings: bool = False) -> Trial:
    """`siblings`: the arm verifies its trees as they grew, so that what siblings bring is known.

    Raises RequestError when the engine aborts a request.
    """
    counts, phases = Counts(), Counter[str]()
    last: dict[str, float] = {}
    gaps: list[float] = []

    def take(record: StepRecord, events: Sequence[TokenEvent], now: float) -> None:
        given = [event.request.request_id for event in events if event.token_ids]
        counts.take(record, sum(name not in last for name in given))
        if siblings:
            counts.siblings.take(record)
        phases.update(record.seconds)
        gaps.extend(now - last[name] for name in given if name in last)
        last.update(dict.fromkeys(given, now))

    duration = serve_closed(engine, requests, concurrency, take)
    num_tokens = sum(len(request.output_ids) for request in requests)
    return Trial(duration, num_tokens, float(np.percentile(gaps, 95)) if gaps else 0.0, counts, dict(phases))
