"""`echo-sched calibrate`: prompts in, profile out, a page that shows it, and a trace where one is asked for.

Progress goes to stderr, the tables to stdout, and stdout's last line is one JSON document.
"""

import argparse
from collections.abc import Sequence

from rich.console import Console

from calibration.flags import parse, sampling_params
from calibration.report import cost_summary, print_costs, print_tables, summary_line
from calibration.trace import write_trace
from echo_sched.prompts import load_prompts
from echo_sched.provenance import command_line


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 with a profile at --out; errors of our family are raised and nothing is written."""
    args = parse(argv)
    command = command_line("echo-sched calibrate", argv)
    return _costs_alone(args, command) if args.cost_only else _calibrate(args, command)


def _calibrate(args: argparse.Namespace, command: Sequence[str]) -> int:
    params = sampling_params(args)
    prompts = load_prompts(args.data)
    from calibration.page import write_page  # loads matplotlib
    from calibration.run import calibrate  # loads torch: --help and bad input need not wait for it

    found = calibrate(args, params, prompts, command)
    found.profile.save(args.out)
    if found.trace is not None:
        write_trace(args.trace, found.trace)
    write_page(args.report, found)
    print_tables(found, Console())
    print(summary_line(found.profile, args.out, args.trace, args.report), flush=True)
    return 0


def _costs_alone(args: argparse.Namespace, command: Sequence[str]) -> int:
    from calibration.cost_only import measure_costs

    profile = measure_costs(args, command)
    profile.save(args.out)
    print_costs(profile, Console())
    print(cost_summary(profile, args.out), flush=True)
    return 0
