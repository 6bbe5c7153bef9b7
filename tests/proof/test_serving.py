"""Random requests under random settings: every token and finish is that of plain decoding, and nothing leaks."""

from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.counts import MECHANISMS, STOPS, Counts, watched
from tests.proof.serving import Serving
from tests.proof.sizes import Sized
from tests.tiny_heads import ORIGINAL, head_tensors, write_head

MAX_DEPTH = 6
CANCELLED = tuple(f"cancelled {phase}" for phase in ("waiting", "in its prompt", "decoding"))
EVERYTHING = (*MECHANISMS, *STOPS, *CANCELLED, "siblings", "up to the context", "of one token")
OFTEN = ("truncations", "widenings", "stops inside runs, length", "cancelled waiting", "siblings", "up to the context")


def test_whatever_happens_every_token_is_that_of_plain_decoding(counts: Counts, sized: Sized, tmp_path: Path) -> None:
    head = write_head(tmp_path, ORIGINAL, head_tensors(ORIGINAL))
    size = settings(
        max_examples=sized(16, 500),
        stateful_step_count=30,
        derandomize=True,
        database=None,
        deadline=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    with watched(counts):
        run_state_machine_as_test(lambda: Serving(counts, head), settings=size)
    assert counts.named["requests compared"] > sized(50, 4000) and counts.named["mismatches"] == 0
    missing = [name for name in sized(OFTEN, EVERYTHING) if not counts.named[name]]
    assert not missing, missing
    assert len(counts.accepted_by_depth) == MAX_DEPTH and counts.num_later_siblings
