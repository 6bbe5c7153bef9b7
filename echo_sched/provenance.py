"""Where a number came from: versions, machine, commit, command and time, for every file of results the product writes.

Knows no torch (versions are read from package metadata) and nothing of what was measured.
"""

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("echo-sched", "torch", "transformers", "numpy")
SECRET_FLAGS = ("--api-key",)
GIT_TIMEOUT_SECONDS = 5


def command_line(command: str, argv: Sequence[str] | None) -> list[str]:
    """What was typed: the process's own command line, or `command` and `argv` where a caller gave them."""
    return list(sys.argv) if argv is None else [*command.split(), *argv]


def provenance(argv: Sequence[str]) -> dict[str, Any]:
    """JSON-able facts of this run: versions, machine, git_commit, timestamp (UTC, ISO 8601), argv.

    `argv` is the whole command line, see `command_line`. Values of secret flags are left out.
    """
    return {
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "machine": machine(),
        "git_commit": git_commit(),
        "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
        "argv": without_secrets(argv),
    }


def machine() -> dict[str, Any]:
    """What computes: processor, usable cores, memory in GiB, platform."""
    return {
        "processor": _processor(),
        "num_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": _memory_gib(),
        "platform": platform.platform(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
    }


def git_commit() -> str | None:
    """Commit of the checkout this package runs from, "-dirty" where files differ; None for an installed package."""
    here = Path(__file__).resolve()
    # An installed package may lie inside somebody else's repository: only a repository that tracks this file is ours.
    if _git(here.parent, "ls-files", "--error-unmatch", here.name) is None:
        return None
    return _git(here.parent, "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*")


def without_secrets(argv: Sequence[str]) -> list[str]:
    """The command line with the values of secret flags replaced by ***."""
    shown: list[str] = []
    for index, word in enumerate(argv):
        flag, equals, _ = word.partition("=")
        if equals and flag in SECRET_FLAGS:
            shown.append(f"{flag}=***")
        elif index and argv[index - 1] in SECRET_FLAGS:
            shown.append("***")
        else:
            shown.append(word)
    return shown


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:  # not Linux
        pass
    return platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    except (ValueError, OSError, AttributeError):
        return None


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=GIT_TIMEOUT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
