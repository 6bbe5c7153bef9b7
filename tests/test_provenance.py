"""Every file of results says where it came from, and no secret."""

import json
import re
import sys
from datetime import datetime
from importlib.metadata import version

from echo_sched.provenance import command_line, provenance


def test_a_run_names_its_versions_machine_and_time() -> None:
    facts = json.loads(json.dumps(provenance(["bench", "compare"])))
    assert facts["argv"] == ["bench", "compare"]
    assert facts["versions"]["torch"] == version("torch")
    assert facts["machine"]["num_cores"] >= 1 and facts["machine"]["processor"]
    assert datetime.fromisoformat(facts["timestamp"]).utcoffset() is not None
    assert facts["git_commit"] is None or re.fullmatch(r"[0-9a-f]{40}(-dirty)?", facts["git_commit"])


def test_secrets_are_left_out() -> None:
    argv = ["load", "--api-key", "hush", "--seed", "1", "--api-key=hush"]
    assert provenance(argv)["argv"] == ["load", "--api-key", "***", "--seed", "1", "--api-key=***"]


def test_the_command_line_is_whole_whoever_calls() -> None:
    assert command_line("echo-sched bench load", ["--seed", "1"]) == ["echo-sched", "bench", "load", "--seed", "1"]
    assert command_line("echo-sched bench load", None) == sys.argv
