"""The command line of `echo-sched simulate`, and the files beside the trace that it names. Starts nothing."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from calibration.flags import ascending
from calibration.trace import TraceHeader
from echo_sched.cli import Parser
from echo_sched.config import EngineConfig
from echo_sched.errors import ConfigError, ProfileError
from echo_sched.flags import add_engine_flags
from echo_sched.scheduler import cost
from echo_sched.scheduler.cost import CostTable
from echo_sched.scheduler.fields import Fields
from echo_sched.scheduler.profile import Profile, check_profile, load_profile
from echo_sched.scheduler.starting_values import BUILT_IN_PROFILES, built_in_profile

# Settings that mean something without a model. Depth and branching are the trace's; an arm may set less.
SETTINGS = (
    "profile", "k_max", "k_max_rule", "price", "gate", "gate_scope", "thresholds", "transfer", "widen", "widen_scope",
    "node_floor", "max_step_stretch", "chunk_tokens", "seed",
)  # fmt: skip

DESCRIPTION = """\
Serve the requests of a trace again, without a model: the real policies share the budget among the trees that were
recorded, and a cost table is the clock. So a policy can be tried at loads and on machines that are not at hand.

Write the trace with `echo-sched calibrate DATA --out PROFILE --trace TRACE`. A node that was not drafted further then
has no children here; `share cut` says how often that shortened an accepted path (static trees are wider than what was
recorded). Requests are repeated to fill the concurrency; a finished one is followed by the next at once.

A step takes what the table says of its forward, its draft levels and, where calibrate measured it, the rest of a step
(overhead). `python -m benchmarks.validate_simulator` holds a simulation against `echo-sched bench compare`."""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Raises ConfigError naming the flag."""
    args = _parser().parse_args(argv)
    if args.num_requests is not None and args.num_requests < 1:
        raise ConfigError(f"--num-requests must be at least 1, got {args.num_requests}")
    return args


def load_matching_profile(path: str | None, header: TraceHeader) -> Profile:
    """The profile of the trace's model and drafter, or the built-in one. Raises ProfileError, ConfigError."""
    if path is not None:
        profile = load_profile(path)
    elif header.drafter.name.split("+")[0] in BUILT_IN_PROFILES:
        profile = built_in_profile(header.drafter.name)
    else:
        raise ConfigError(f"there is no built-in profile for drafter {header.drafter.name}: --profile is needed")
    check_profile(profile, header.model, header.drafter)
    return profile


def load_cost(path: str | None, profile: Profile) -> CostTable:
    """The table that is the clock: a file's, else the profile's. Raises ProfileError, ConfigError."""
    if path is None:
        if profile.cost is None:
            raise ConfigError("the profile has no measured costs: name a table with --cost-curve")
        return profile.cost
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ProfileError(f"cannot read cost curve {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"cost curve {path} is not JSON: {error}") from error
    try:
        return CostTable.from_json(Fields(data, "", cost.KEYS, cost.OPTIONAL_KEYS))
    except ProfileError as error:
        raise ProfileError(f"cost curve {path}: {error}") from error


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "echo-sched simulate",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Example: echo-sched simulate trace.jsonl.gz --profile profile.json --policies off,static,echo,goodput "
        "--concurrency 8,64,256 --output simulated.json",
    )
    add = parser.add_argument
    add("trace", metavar="TRACE", help="trace that `echo-sched calibrate --trace` wrote")
    add(
        "--policies",
        default="off,static,dynamic,echo,goodput",
        metavar="ARM[,ARM...]",
        help="policies, with settings of their own after colons, as in echo:gate=none:k_max=64 or goodput:price=off; "
        "off is always among them (default: %(default)s)",
    )
    add(
        "--concurrency",
        type=ascending,
        default=(8, 64, 256, 1024),
        metavar="N[,N...]",
        help="requests running at once (default: 8,64,256,1024)",
    )
    add(
        "--num-requests",
        type=int,
        metavar="N",
        help="requests to serve at each concurrency (default: the trace's, and at least twice the concurrency)",
    )
    add("--cost-curve", metavar="FILE", help="JSON table of what forwards cost (default: the profile's)")
    add("--output", metavar="FILE", help="JSON file to write (default: tables and the headline only)")
    add("--plot", metavar="FILE.svg", help="plot to write: speed and pace of every policy by concurrency")
    add_engine_flags(parser, exclude=[name for name in EngineConfig.model_fields if name not in SETTINGS])
    return parser
