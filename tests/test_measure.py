"""The cost curve reports what the clock said, per shape, and leaves the cache as it found it."""

import pytest
import torch

from echo_sched.engine.kv import KVCache, KVShape
from echo_sched.engine.measure import NUM_WARM_UPS, measure_forward, most_cached
from echo_sched.tree import SuperTree

CPU = torch.device("cpu")


class ScriptedMachine:
    """A forward whose time is known: it moves its own clock, slower in its first runs and in one slow spell."""

    def __init__(self) -> None:
        self.now = 0.0
        self.trees: list[SuperTree] = []

    def clock(self) -> float:
        return self.now

    def forward(self, tree: SuperTree) -> None:
        self.trees.append(tree)
        slow_spell = 10.0 if len(self.trees) in (1, 2, 3, 20) else 1.0
        self.now += slow_spell * (0.5 + tree.num_rows + int(tree.base_len.sum()) / 1000)


def cache(num_slots: int = 4, max_len: int = 64) -> KVCache:
    return KVCache(KVShape(1, 1, 2), num_slots=num_slots, max_len=max_len, dtype=torch.float32, device=CPU)


def test_medians_are_the_true_cost_in_spite_of_slow_spells() -> None:
    machine, kv = ScriptedMachine(), cache()
    curve = measure_forward(
        machine.forward, kv, CPU, num_tokens=(1, 8, 32), cached_tokens=(10, 40), num_repeats=5, clock=machine.clock
    )
    expected = [[0.5 + rows + cached / 1000 for cached in (10, 40)] for rows in (1, 8, 32)]
    assert [list(row) for row in curve.seconds] == [pytest.approx(row) for row in expected]
    assert all(spread >= 0.0 for row in curve.spread for spread in row)
    assert (curve.num_tokens, curve.cached_tokens) == ((1, 8, 32), (10, 40))


def test_rows_and_cached_tokens_are_spread_over_as_many_requests_as_have_a_typical_context() -> None:
    machine, kv = ScriptedMachine(), cache(num_slots=5, max_len=600)
    sizes = {"num_tokens": (1, 6, 32), "cached_tokens": (16, 1000)}
    measure_forward(machine.forward, kv, CPU, **sizes, num_repeats=1, clock=machine.clock)
    shapes = {(tree.num_rows, int(tree.base_len.sum())): sorted(tree.base_len) for tree in machine.trees}
    assert shapes == {
        (1, 16): [16], (6, 16): [16], (32, 16): [16],
        (2, 1000): [500, 500],  # no request has room for all, so there is a second row
        (6, 1000): [250] * 4, (32, 1000): [250] * 4,
    }  # fmt: skip
    for tree in machine.trees:
        assert len(tree.logit_row) == tree.num_rows
        assert int(tree.position.max()) < kv.max_len


def test_repeats_are_interleaved_few_rows_run_twice_as_often_and_progress_reaches_the_total() -> None:
    machine, kv = ScriptedMachine(), cache()
    progress: list[tuple[int, int]] = []
    measure_forward(
        machine.forward, kv, CPU, num_tokens=(1, 2, 65), cached_tokens=(8,), num_repeats=4,
        report=lambda done, total: progress.append((done, total)), clock=machine.clock,
    )  # fmt: skip
    rows = [tree.num_rows for tree in machine.trees]
    first = 3 * NUM_WARM_UPS
    assert all(sorted(rows[at : at + 3]) == [1, 2, 65] for at in range(0, first, 3))
    assert all(sorted(rows[at : at + 5]) == [1, 1, 2, 2, 65] for at in range(first, len(rows), 5))
    assert progress == [(done, len(rows)) for done in range(1, first + 5 * 4 + 1)]


def test_slots_are_free_again_even_after_a_failed_forward() -> None:
    def fail(tree: SuperTree) -> None:
        raise RuntimeError("out of memory")

    kv = cache()
    with pytest.raises(RuntimeError):
        measure_forward(fail, kv, CPU, num_tokens=(1,), cached_tokens=(8,), num_repeats=1)
    kv.check_integrity({})


def test_most_cached_is_the_last_that_fits() -> None:
    kv, machine = cache(num_slots=2, max_len=32), ScriptedMachine()
    most = most_cached(kv.num_slots, kv.max_len, 16)
    measure_forward(
        machine.forward, kv, CPU, num_tokens=(16,), cached_tokens=(most,), num_repeats=1, clock=machine.clock
    )
    assert int(machine.trees[-1].position.max()) == kv.max_len - 1
    with pytest.raises(AssertionError):
        measure_forward(machine.forward, kv, CPU, num_tokens=(16,), cached_tokens=(most + 1,), num_repeats=1)
