"""One calibration from settings to profile: run ungated trees, fit, time the machine, put the parts together.

Loads torch and the model; everything that can be checked without them has been checked before.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calibration.assemble import with_results, youden_profile
from calibration.buckets import buckets_of, positions_of, serving_settings
from calibration.categories import category_of, category_stats
from calibration.chosen import chosen_k_max
from calibration.collect import Sample, Trace, collect, draw_sample
from calibration.costs import measure_forwards, measure_steps, step_cost
from calibration.progress import progress
from calibration.provenance import profile_provenance
from calibration.record import offer_trace, record, tracing
from calibration.result import Calibration
from calibration.trace import OfferTrace
from echo_sched.config import EngineConfig
from echo_sched.errors import DataError
from echo_sched.flags import engine_config
from echo_sched.loop import DecodeLoop
from echo_sched.loop.assembly import resolve_drafter
from echo_sched.prompts import PromptFile
from echo_sched.scheduler.fit import Fit, fit
from echo_sched.scheduler.starting_values import built_in_profile
from echo_sched.types import Request, SamplingParams

SETTINGS = (
    "max_prompts",
    "max_new_tokens",
    "ignore_eos",
    "concurrency",
    "temperature",
    "seed",
    "chat_template",
    "checkpoint_rule",
    "auc_cut",
    "drop_cut",
    "threshold_rule",
    "k_max",
    "cost_tokens",
    "cost_cached",
    "cost_repeats",
)


def calibrate(
    args: argparse.Namespace, params: SamplingParams, prompts: PromptFile, argv: Sequence[str]
) -> Calibration:
    """Raises DataError when no prompt is usable or the drafter never offers anything; ConfigError, ModelError."""
    config = ungated(args)
    loop = DecodeLoop.from_config(config, recording=True)
    sample, trace = _answer(loop, args, params, prompts)
    fitted = _fit(args, config, trace)
    curve = None if args.cost_repeats == 0 else measure_forwards(loop, args)
    steps = [] if curve is None else measure_steps(loop, sample.requests)
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
    cost = None if curve is None else step_cost(loop, curve, steps, facts["machine"])
    profile = youden_profile(loop.model_identity, loop.drafter_identity, fitted, trace.nodes, cost, facts)
    positions, settings = positions_of(loop, sample.requests, trace, fitted), serving_settings(args, config)
    buckets = buckets_of(args.threshold_rule, settings, positions, profile, trace, fitted)
    categories = category_stats(trace.readings, sample.requests, _kinds(args.data, prompts), config.max_depth)
    profile = with_results(profile, buckets, categories)
    return Calibration(
        profile=profile,
        fit=fitted,
        readings=trace.readings,
        nodes=trace.nodes,
        categories=categories,
        buckets=buckets,
        chosen_k_max={} if cost is None else chosen_k_max(positions, profile, settings),
        trace=_record(loop, sample.requests, args.concurrency, facts) if args.trace else None,
    )


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


def _answer(
    loop: DecodeLoop, args: argparse.Namespace, params: SamplingParams, prompts: PromptFile
) -> tuple[Sample, Trace]:
    """Raises DataError when no prompt is usable or the drafter never offers anything."""
    sample = draw_sample(loop, prompts.prompts, params, max_prompts=args.max_prompts, chat_template=args.chat_template)
    with progress("answering prompts with ungated trees (tokens)") as report:
        trace = collect(loop, sample.requests, concurrency=args.concurrency, report=report)
    if not trace.readings:
        raise DataError(
            f"the {loop.config.drafter} drafter offered nothing on {len(sample.requests)} prompts, so there is nothing "
            "to calibrate; use more or longer prompts, or a larger --max-new-tokens"
        )
    return sample, trace


def _fit(args: argparse.Namespace, config: EngineConfig, trace: Trace) -> Fit:
    return fit(
        trace.readings,
        max_depth=config.max_depth,
        checkpoint_rule=args.checkpoint_rule,
        auc_cut=args.auc_cut,
        drop_cut=args.drop_cut,
        seed=args.seed,
    )


def _kinds(data: str, prompts: PromptFile) -> dict[str, str]:
    """Request id -> kind of prompt."""
    return {f"row-{row.source_row}": category_of(row.category, Path(data).name) for row in prompts.prompts}


def _record(loop: DecodeLoop, answered: Sequence[Request], concurrency: int, facts: dict[str, Any]) -> OfferTrace:
    """Answer the same prompts again, one token at a time."""
    recording = tracing(loop)
    requests = [Request(request.request_id, request.prompt_ids, request.params) for request in answered]
    with progress("recording what is offered at every position (answers)") as report:
        pools = record(recording, requests, concurrency=concurrency, report=report)
    return offer_trace(recording, requests, pools, facts)
