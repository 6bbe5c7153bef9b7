"""`echo-sched train-draft`: prompts or generations in, an EAGLE-3 head out.

Progress goes to stderr; stdout gets one JSON document.
"""

import json
from collections.abc import Sequence

from calibration.train_draft.data import holds_answers
from calibration.train_draft.flags import claim_folder, parse
from echo_sched.provenance import command_line


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 with a head in --out; errors of our family are raised."""
    args = parse(argv)
    answered = holds_answers(args.data)
    out = claim_folder(args.out, resume=args.resume)
    from calibration.train_draft.run import train_draft  # loads torch: --help and bad input need not wait for it

    command = command_line("echo-sched train-draft", argv)
    summary = train_draft(args, out, answered=answered, argv=command)
    print(json.dumps(summary, allow_nan=False), flush=True)
    return 0
