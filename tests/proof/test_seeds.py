"""The same seed, the same tokens: alone, in a full batch, under load, after a restart."""

import json
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY
from tests.counts import Counts, watched
from tests.proof.seeds import OPEN, Outputs, alone, alone_without_drafts, in_a_full_batch, under_load

CASES = ["tiny", pytest.param("smollm2", marks=pytest.mark.long)]


def after_a_restart(name: str) -> Outputs:
    """By a process that never saw anything else."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.proof.seeds", name], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    outputs: Outputs = json.loads(done.stdout)
    return outputs


@pytest.mark.parametrize("name", CASES)
def test_nothing_but_the_seed_decides(name: str, counts: Counts) -> None:
    case = OPEN[name]()
    expected = alone_without_drafts(case)
    with watched(counts):
        found = {way.__name__: way(case) for way in (alone, in_a_full_batch, under_load)}
    found["after a restart"] = after_a_restart(name)
    for way, outputs in found.items():
        assert outputs == expected, way
        counts.named.update({"requests compared": len(outputs), "tokens": sum(map(len, outputs.values()))})
    counts.report(mismatches=0, ways=", ".join(found))
    assert sum(counts.accepted_by_depth) > 20
