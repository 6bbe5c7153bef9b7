"""`calibrate --cost-only`: what forwards and draft levels cost here, in a profile that is otherwise as it was.

Loads torch and the model.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace

from calibration.progress import progress
from echo_sched import provenance
from echo_sched.engine.measure import measure_cost
from echo_sched.flags import engine_config
from echo_sched.loop import DecodeLoop
from echo_sched.loop.drafting_cost import measure_drafting
from echo_sched.loop.pricing import cost_table
from echo_sched.scheduler.profile import Profile

SETTINGS = ("cost_tokens", "cost_cached", "cost_repeats")


def measure_costs(args: argparse.Namespace, argv: Sequence[str]) -> Profile:
    """The profile of `--profile`, or what would serve without one, with costs of this machine.

    Raises ConfigError, ModelError, ProfileError.
    """
    loop = DecodeLoop.from_config(engine_config(args, policy="echo", price="off"))
    with progress("timing forwards (runs)") as report:
        curve = measure_cost(
            loop.target,
            max_model_len=loop.max_model_len,
            num_tokens=args.cost_tokens,
            cached_tokens=args.cost_cached,
            num_repeats=args.cost_repeats,
            report=report,
        )
    facts = provenance.provenance(argv)
    machine = {**facts["machine"], **curve.measured_on}
    cost = cost_table(curve, measure_drafting(loop), machine=machine)
    measured = facts | {"settings": {name: getattr(args, name) for name in SETTINGS}}
    return replace(loop.profile, cost=cost, provenance=loop.profile.provenance | {"cost": measured})
