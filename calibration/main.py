"""`echo-sched calibrate`: prompts in, profile out, and a trace where one is asked for.

Progress goes to stderr, the table to stdout, and stdout's last line is one JSON document.
"""

from collections.abc import Sequence

from rich.console import Console

from calibration.flags import parse, sampling_params
from calibration.report import print_table, summary_line
from calibration.trace import write_trace
from echo_sched.prompts import load_prompts
from echo_sched.provenance import command_line


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 with a profile at --out; errors of our family are raised and nothing is written."""
    args = parse(argv)
    params = sampling_params(args)
    prompts = load_prompts(args.data)
    from calibration.run import calibrate  # loads torch: --help and bad input need not wait for it

    profile, fitted, trace = calibrate(args, params, prompts, command_line("echo-sched calibrate", argv))
    profile.save(args.out)
    if trace is not None:
        write_trace(args.trace, trace)
    print_table(fitted, Console())
    print(summary_line(profile, args.out, args.trace), flush=True)
    return 0
