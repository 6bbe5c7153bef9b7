"""Random requests under random settings: every token and finish is that of plain decoding, and nothing leaks."""

from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.counts import MECHANISMS, STOPS, Counts, watched
from tests.proof.serving import Serving
from tests.tiny_heads import ORIGINAL, head_tensors, write_head

MAX_DEPTH = 6


def test_whatever_happens_every_token_is_that_of_plain_decoding(
    counts: Counts, sized: Callable[[int, int], int], tmp_path: Path
) -> None:
    head = write_head(tmp_path, ORIGINAL, head_tensors(ORIGINAL))
    size = settings(
        max_examples=sized(12, 500),
        stateful_step_count=30,
        derandomize=True,
        database=None,
        deadline=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    with watched(counts):
        run_state_machine_as_test(lambda: Serving(counts, head), settings=size)
    found = counts.named
    assert found["requests compared"] > sized(50, 4000) and found["mismatches"] == 0
    assert len(counts.accepted_by_depth) == MAX_DEPTH and counts.num_later_siblings
    events = ("siblings", "up to the context", "of one token")
    cancelled = tuple(f"cancelled {phase}" for phase in ("waiting", "in its prompt", "decoding"))
    missing = [name for name in (*MECHANISMS, *STOPS, *events, *cancelled) if not found[name]]
    assert not missing, missing
