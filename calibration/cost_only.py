"""`calibrate --cost-only`: what forwards and draft levels cost here, in a profile that is otherwise as it was.

Loads torch and the model.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace

from calibration.costs import forward_cost, measure_forwards
from echo_sched import provenance
from echo_sched.flags import engine_config
from echo_sched.loop import DecodeLoop
from echo_sched.scheduler.profile import Profile

SETTINGS = ("cost_tokens", "cost_cached", "cost_repeats")


def measure_costs(args: argparse.Namespace, argv: Sequence[str]) -> Profile:
    """The profile of `--profile`, or what would serve without one, with costs of this machine.

    Raises ConfigError, ModelError, ProfileError.
    """
    loop = DecodeLoop.from_config(engine_config(args, policy="echo", price="off"))
    curve = measure_forwards(loop, args)
    facts = provenance.provenance(argv)
    cost = forward_cost(loop, curve, facts["machine"])
    measured = facts | {"settings": {name: getattr(args, name) for name in SETTINGS}}
    return replace(loop.profile, cost=cost, provenance=loop.profile.provenance | {"cost": measured})
