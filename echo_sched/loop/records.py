"""What a step did, in plain numbers: per request (RequestStats) and for everybody (StepRecord)."""

from collections.abc import Sequence
from dataclasses import dataclass

from echo_sched.loop.rows import Chunk
from echo_sched.scheduler.plan import AllocationReport, Plan
from echo_sched.tree import DraftTree
from echo_sched.types import GateReading, NodeReading, Request, StepOffers, StepRecord


@dataclass(frozen=True)
class StepOutcome:
    """Everything that is counted. Lists by decoding request; `emitted` ends with requests that left their prompt."""

    step: int
    plan: Plan
    decoding: Sequence[Request]
    trees: Sequence[DraftTree]
    chunks: Sequence[Chunk]
    accepted: Sequence[Sequence[int]]  # accepted nodes
    emitted: Sequence[Sequence[int]]  # tokens
    report: AllocationReport


def count(outcome: StepOutcome) -> None:
    """Add the verify step to each decoding request's statistics."""
    report = outcome.report
    columns = (report.num_nodes.tolist(), report.truncated.tolist(), report.num_widened.tolist())
    for index, (request, nodes, truncated, widened) in enumerate(zip(outcome.decoding, *columns, strict=True)):
        stats, num_accepted = request.stats, len(outcome.accepted[index])
        stats.num_verify_steps += 1
        stats.num_emitted += len(outcome.emitted[index])
        stats.num_verified += nodes
        stats.num_accepted += num_accepted
        stats.num_truncated += truncated
        stats.num_widened += widened
        stats.accepted_lengths[num_accepted] += 1


def step_record(outcome: StepOutcome, seconds: dict[str, float], *, recording: bool) -> StepRecord:
    report = outcome.report
    return StepRecord(
        step=outcome.step,
        num_decoding=len(outcome.decoding),
        num_prompt_tokens=sum(chunk.size for chunk in outcome.chunks),
        k_max=outcome.plan.k_max,
        num_offered=report.num_offered,
        num_levels=report.num_levels,
        num_dropped=int(report.num_dropped.sum()),
        num_verified=int(report.num_nodes.sum()),
        num_accepted=sum(map(len, outcome.accepted)),
        num_emitted=sum(map(len, outcome.emitted)),
        truncated=report.truncated_by_depth,
        deepened=report.deepened,
        num_widened=int(report.num_widened.sum()),
        num_transferred=report.num_transferred,
        seconds=seconds,
        explored=outcome.plan.explored,
        expected_accepted=None if outcome.plan.price is None else report.expected,
        expected_seconds=_expected_seconds(outcome),
        gate_readings=_gate_readings(outcome) if recording else (),
        node_readings=_node_readings(outcome) if recording else (),
        offers=_offers(outcome) if recording else None,
    )


def _expected_seconds(outcome: StepOutcome) -> float | None:
    price = outcome.plan.price
    return None if price is None else float(price.verify_seconds[outcome.report.num_nodes.sum()] + price.prompt_seconds)


def _gate_readings(outcome: StepOutcome) -> tuple[GateReading, ...]:
    """Label y[i, d] = 1 iff the accepted path of request i reaches depth d."""
    readings = outcome.report.readings
    columns = (readings.request.tolist(), readings.depth.tolist(), readings.confidence.tolist())
    return tuple(
        GateReading(
            outcome.step,
            outcome.decoding[index].request_id,
            depth,
            confidence,
            len(outcome.accepted[index]) >= depth,
        )
        for index, depth, confidence in zip(*columns, strict=True)
    )


def _node_readings(outcome: StepOutcome) -> tuple[NodeReading, ...]:
    return tuple(
        NodeReading(outcome.step, request.request_id, depth, path_logp, node in accepted)
        for request, tree, nodes in zip(outcome.decoding, outcome.trees, outcome.accepted, strict=True)
        for accepted in (set(nodes),)
        for node, (depth, path_logp) in enumerate(zip(tree.depths, tree.path_logps, strict=True))
    )


def _offers(outcome: StepOutcome) -> StepOffers:
    seen = outcome.report.seen
    return StepOffers(tuple(request.request_id for request in outcome.decoding), seen.offers, seen.depth, seen.node)
