"""Words to a waiting person. Knows nothing of what is being waited for."""

import sys


def say(line: str) -> None:
    """Tell what is going on: one line on stderr, so that stdout stays for results."""
    print(f"echo-sched: {line}", file=sys.stderr, flush=True)
