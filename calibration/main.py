"""`echo-sched calibrate`: prompts in, profile out.

Progress goes to stderr, the table to stdout, and stdout's last line is one JSON document.
"""

import sys
from collections.abc import Sequence

from rich.console import Console

from calibration.flags import parse, sampling_params
from calibration.report import print_table, summary_line
from echo_sched.prompts import load_prompts


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 with a profile at --out; errors of our family are raised and nothing is written."""
    args = parse(argv)
    params = sampling_params(args)
    prompts = load_prompts(args.data)
    from calibration.run import calibrate  # loads torch: --help and bad input need not wait for it

    command = sys.argv if argv is None else ["echo-sched", "calibrate", *argv]
    profile, fitted = calibrate(args, params, prompts, command)
    profile.save(args.out)
    print_table(fitted, Console())
    print(summary_line(profile, args.out), flush=True)
    return 0
