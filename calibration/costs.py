"""What the machine at hand takes: forwards, drafting, and whole steps beyond both. Shows how far it is."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from calibration.overhead import TimedStep, fit_overhead, time_steps
from calibration.progress import progress
from echo_sched.engine.measure import CostCurve, measure_cost
from echo_sched.loop import DecodeLoop
from echo_sched.loop.drafting_cost import measure_drafting
from echo_sched.loop.pricing import cost_table
from echo_sched.scheduler.cost import CostTable
from echo_sched.types import Request


def measure_forwards(loop: DecodeLoop, args: argparse.Namespace) -> CostCurve:
    """At the rows and cached tokens asked for, on the idle loop."""
    with progress("timing forwards (runs)") as report:
        return measure_cost(
            loop.target,
            max_model_len=loop.max_model_len,
            num_tokens=args.cost_tokens,
            cached_tokens=args.cost_cached,
            num_repeats=args.cost_repeats,
            report=report,
        )


def measure_steps(loop: DecodeLoop, requests: Sequence[Request]) -> list[TimedStep]:
    """Plain steps of requests like these, on the idle loop."""
    with progress("timing whole steps (batches)") as report:
        return time_steps(loop, requests, report=report)


def forward_cost(loop: DecodeLoop, curve: CostCurve, machine: dict[str, Any]) -> CostTable:
    """The curve with the drafting of the idle loop, which is timed now."""
    return cost_table(curve, measure_drafting(loop), machine={**machine, **curve.measured_on})


def step_cost(loop: DecodeLoop, curve: CostCurve, steps: Sequence[TimedStep], machine: dict[str, Any]) -> CostTable:
    """The same with what plain steps take beyond their forward."""
    cost = forward_cost(loop, curve, machine)
    return replace(cost, overhead=fit_overhead(steps, cost))
