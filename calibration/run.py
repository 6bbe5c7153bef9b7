"""One calibration from settings to profile: run ungated trees, fit, time the machine, put the parts together.

Loads torch and the model; everything that can be checked without them has been checked before.
"""

import argparse
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from calibration.acceptance import acceptance_curves
from calibration.collect import Trace, collect, draw_sample
from calibration.progress import progress
from calibration.provenance import profile_provenance
from calibration.record import offer_trace, record, tracing
from calibration.trace import OfferTrace
from echo_sched.config import EngineConfig
from echo_sched.engine.measure import CostCurve
from echo_sched.errors import DataError
from echo_sched.flags import engine_config
from echo_sched.loop import DecodeLoop
from echo_sched.loop.assembly import resolve_drafter
from echo_sched.loop.drafting_cost import measure_drafting
from echo_sched.loop.pricing import cost_table
from echo_sched.prompts import PromptFile
from echo_sched.scheduler.cost import CostTable
from echo_sched.scheduler.fit import DepthFit, Fit, fit
from echo_sched.scheduler.profile import Checkpoint, DepthStats, Profile
from echo_sched.scheduler.starting_values import built_in_profile
from echo_sched.types import Request, SamplingParams

SETTINGS = (
    "max_prompts",
    "max_new_tokens",
    "concurrency",
    "temperature",
    "seed",
    "chat_template",
    "auc_cut",
    "cost_tokens",
    "cost_cached",
    "cost_repeats",
)


class Calibration(NamedTuple):
    """The result: what is stored, and what a person is shown."""

    profile: Profile
    fit: Fit
    trace: OfferTrace | None  # where one was asked for


def calibrate(
    args: argparse.Namespace, params: SamplingParams, prompts: PromptFile, argv: Sequence[str]
) -> Calibration:
    """Raises DataError when no prompt is usable or the drafter never offers anything; ConfigError, ModelError."""
    config = ungated(args)
    loop = DecodeLoop.from_config(config, recording=True)
    sample = draw_sample(loop, prompts.prompts, params, max_prompts=args.max_prompts, chat_template=args.chat_template)
    with progress("answering prompts with ungated trees (tokens)") as report:
        trace = collect(loop, sample.requests, concurrency=args.concurrency, report=report)
    if not trace.readings:
        raise DataError(
            f"the {config.drafter} drafter offered nothing on {len(sample.requests)} prompts, so there is nothing to "
            "calibrate; use more or longer prompts, or a larger --max-new-tokens"
        )
    fitted = fit(trace.readings, max_depth=config.max_depth, auc_cut=args.auc_cut, seed=args.seed)
    curve = _measure(loop, args)
    facts = profile_provenance(
        argv,
        data_path=args.data,
        prompts=prompts,
        sample=sample,
        settings={name: getattr(args, name) for name in SETTINGS},
        config=config,
        trace=trace,
        curve=curve,
        weights=loop.info()["weights"],
    )
    offers = _record(loop, sample.requests, args.concurrency, facts) if args.trace else None
    return Calibration(_profile(loop, fitted, trace, curve, facts), fitted, offers)


def ungated(args: argparse.Namespace) -> EngineConfig:
    """Engine settings under which nothing stops a tree but its depth: no gate, no budget limit, no widening.

    Widened siblings would be accepted now and then and blur what the gate guards, so there are none.
    """
    settings: dict[str, Any] = {"policy": "echo", "gate": "none", "widen": "off", "price": "off", "seed": args.seed}
    served = resolve_drafter(engine_config(args, **settings))
    # The level width is K_max / B / D_typ, at most `branching`: K_max must not be what limits it.
    levels = max(served.max_depth, math.ceil(built_in_profile(served.drafter).typical_depth))
    return engine_config(
        args,
        {"max_batch_size": "concurrency"},
        **settings,
        drafter=served.drafter,
        draft_model=served.draft_model,
        k_max_rule="fixed",
        k_max=args.concurrency * levels * served.branching,
        max_batch_size=max(served.max_batch_size, args.concurrency),
    )


def _record(loop: DecodeLoop, answered: Sequence[Request], concurrency: int, facts: dict[str, Any]) -> OfferTrace:
    """Answer the same prompts again, one token at a time."""
    recording = tracing(loop)
    requests = [Request(request.request_id, request.prompt_ids, request.params) for request in answered]
    with progress("recording what is offered at every position (answers)") as report:
        pools = record(recording, requests, concurrency=concurrency, report=report)
    return offer_trace(recording, requests, pools, facts)


def _measure(loop: DecodeLoop, args: argparse.Namespace) -> CostCurve | None:
    if args.cost_repeats == 0:
        return None
    with progress("timing forwards (runs)") as report:
        return loop.measure_cost(
            num_tokens=args.cost_tokens, cached_tokens=args.cost_cached, num_repeats=args.cost_repeats, report=report
        )


def _profile(loop: DecodeLoop, fitted: Fit, trace: Trace, curve: CostCurve | None, facts: dict[str, Any]) -> Profile:
    cost: CostTable | None = None
    if curve is not None:
        cost = cost_table(curve, measure_drafting(loop), machine={**facts["machine"], **curve.measured_on})
    return Profile(
        model=loop.model_identity,
        drafter=loop.drafter_identity,
        target_depth=fitted.target_depth,
        typical_depth=fitted.typical_depth,
        checkpoints=tuple(_checkpoint(depth) for depth in fitted.checkpoints),
        no_checkpoint_reason=fitted.no_checkpoint_reason,
        depths=tuple(_stats(depth) for depth in fitted.depths),
        acceptance=acceptance_curves(trace.nodes),
        cost=cost,
        provenance=facts,
    )


def _checkpoint(fit: DepthFit) -> Checkpoint:
    assert fit.threshold is not None, "a depth without a threshold is no checkpoint"
    return Checkpoint(fit.depth, fit.threshold, fit.auc, fit.auc_low, fit.auc_high, fit.n)


def _stats(fit: DepthFit) -> DepthStats:
    return DepthStats(
        depth=fit.depth,
        n=fit.n,
        acceptance=fit.acceptance,
        mean_confidence=fit.mean_confidence,
        auc=fit.auc,
        auc_low=fit.auc_low,
        auc_high=fit.auc_high,
        threshold=fit.threshold,
    )
