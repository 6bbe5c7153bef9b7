"""Records a trace: answers prompts with trees that are drafted at every position and never verified.

Each step commits one token, so that no position is skipped. Knows the loop, and nothing of files or of what is made of
the trace.
"""

from collections.abc import Callable, Sequence
from typing import Any

from calibration.collect import Loop
from calibration.offers import OfferLog
from calibration.pool import Pool
from calibration.trace import OfferTrace, TracedRequest, TraceHeader
from echo_sched.loop import DecodeLoop
from echo_sched.scheduler.plan import Feedback, Load, Plan
from echo_sched.types import Request


class TracePolicy:
    """A beam of `branching` nodes per depth for everybody, down to `max_depth`, and nothing of it is verified."""

    name = "trace"

    def __init__(self, max_depth: int, branching: int) -> None:
        self._max_depth = max_depth
        self._branching = branching

    def plan(self, load: Load) -> Plan:
        return Plan(
            k_max=load.num_requests * self._max_depth * self._branching,
            max_depth=self._max_depth,
            target_depth=self._max_depth,
            widths=(self._branching,) * self._max_depth,
            thresholds=(None,) * self._max_depth,
            verify=False,
        )

    def observe(self, load: Load, feedback: Feedback) -> None:
        """Learns nothing."""


def tracing(loop: DecodeLoop) -> DecodeLoop:
    """A loop on the same idle target, with the same drafter, that records whatever is offered."""
    policy = TracePolicy(loop.config.max_depth, loop.config.branching)
    return DecodeLoop(
        loop.config, loop.target, loop.drafter, policy, loop.profile, recording=True, sampler=loop.sampler
    )


def record(
    loop: Loop, requests: Sequence[Request], *, concurrency: int, report: Callable[[int, int], None]
) -> tuple[tuple[Pool, ...], ...]:
    """Run all requests on a `tracing` loop, at most `concurrency` at a time. Returns [requests][output tokens - 1].

    `report(requests done, requests)` follows each step.
    """
    waiting = list(reversed(requests))
    log = OfferLog()
    running = 0
    while waiting or loop.has_work:
        while waiting and running < concurrency:
            loop.add(waiting.pop())
            running += 1
        positions = {request.request_id: len(request.output_ids) for request in requests}
        running -= sum(event.finish is not None for event in loop.step())
        assert loop.last_record is not None and loop.last_record.offers is not None, "a step of a recording loop"
        log.add(loop.last_record.offers, positions)
        report(len(requests) - len(waiting) - running, len(requests))
    placed = log.pools(requests)
    for request, of_request in zip(requests, placed, strict=True):
        found = [position for position, _ in of_request]
        assert found == list(range(1, len(request.output_ids))), "one token per step, the first from the prompt"
    return tuple(tuple(pool for _, pool in of_request) for of_request in placed)


def offer_trace(
    loop: DecodeLoop,
    requests: Sequence[Request],
    pools: tuple[tuple[Pool, ...], ...],
    provenance: dict[str, Any],
) -> OfferTrace:
    """What `record` found on `loop`, with what identifies it."""
    header = TraceHeader(
        model=loop.model_identity,
        drafter=loop.drafter_identity,
        max_depth=loop.config.max_depth,
        branching=loop.config.branching,
        temperature=requests[0].params.temperature,
        stop_ids=() if requests[0].params.ignore_eos else tuple(sorted(loop.target.facts.eos_ids)),
        requests=tuple(TracedRequest(len(r.prompt_ids), r.params.max_new_tokens, len(r.output_ids)) for r in requests),
        provenance=provenance,
    )
    return OfferTrace(header, pools)
