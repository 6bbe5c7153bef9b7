"""The benchmark of scheduling's own cost does the work that it claims to time."""

import pytest

from benchmarks.host_work import HostWork
from benchmarks.scheduler_cost import PARTS, exponent, measure


@pytest.mark.parametrize("policy", ["echo", "goodput"])
def test_eight_candidates_per_request_are_offered_over_four_depths_and_k_max_is_spent(policy: str) -> None:
    cell = measure(HostWork(policy, 6), num_repeats=1)
    assert (cell["num_candidates"], cell["num_levels"], cell["num_nodes"]) == (48, 4, 42)
    assert set(cell["seconds"]) == set(PARTS)


def test_the_exponent_is_the_slope_on_logarithmic_scales() -> None:
    by_batch = {str(n): {"seconds": {"decisions": {"median": 0.001 * n**0.5}}} for n in (16, 64, 256)}
    assert exponent(by_batch) == pytest.approx(0.5)
    assert exponent({"16": by_batch["16"]}) is None
