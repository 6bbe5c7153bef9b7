"""Admission: slots go first come first served, prompts share a token budget and always make progress."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_sched.scheduler.admission import chunk_budget, chunk_sizes, num_admitted

prompts = st.lists(st.integers(1, 500), max_size=20)


@given(st.integers(0, 100), st.integers(0, 100))
def test_no_slot_idles_while_a_request_waits(num_waiting: int, num_free_slots: int) -> None:
    admitted = num_admitted(num_waiting, num_free_slots)
    assert 0 <= admitted <= num_free_slots
    assert admitted in (num_waiting, num_free_slots)


@given(prompts, st.integers(0, 3), st.integers(1, 300))
def test_the_budget_is_respected_and_used(remaining: list[int], num_decoding: int, chunk_tokens: int) -> None:
    sizes = chunk_sizes(remaining, num_decoding, chunk_tokens)
    budget = chunk_budget(len(remaining), num_decoding, chunk_tokens)
    assert len(sizes) == len(remaining)
    assert all(0 <= size <= prompt for size, prompt in zip(sizes, remaining, strict=True))
    assert sum(sizes) == min(budget, sum(remaining))


@given(prompts, st.integers(0, 3), st.integers(1, 300))
def test_first_come_first_served(remaining: list[int], num_decoding: int, chunk_tokens: int) -> None:
    sizes = chunk_sizes(remaining, num_decoding, chunk_tokens)
    for index, size in enumerate(sizes[1:], start=1):
        if size:
            assert sizes[index - 1] == remaining[index - 1], "the one before was not filled"


@given(st.lists(st.integers(1, 60), min_size=1, max_size=12), st.integers(1, 4), st.integers(1, 40))
def test_every_request_is_served_in_the_end_and_in_order(prompts: list[int], slots: int, chunk_tokens: int) -> None:
    waiting, prefilling, served = list(enumerate(prompts)), [], []
    for _ in range(sum(prompts)):  # at least one prompt token per step
        admitted = num_admitted(len(waiting), slots - len(prefilling))
        prefilling, waiting = prefilling + waiting[:admitted], waiting[admitted:]
        sizes = chunk_sizes([left for _, left in prefilling], len(served), chunk_tokens)
        assert sum(sizes) >= 1
        prefilling = [(name, left - size) for (name, left), size in zip(prefilling, sizes, strict=True)]
        served += [name for name, left in prefilling if left == 0]
        prefilling = [(name, left) for name, left in prefilling if left]
        if not prefilling and not waiting:
            break
    assert served == list(range(len(prompts)))


@pytest.mark.parametrize(("num_decoding", "expected"), [(1000, [6, 0]), (2, [10, 5]), (0, [10, 14])])
def test_prompts_get_more_the_fewer_requests_decode(num_decoding: int, expected: list[int]) -> None:
    assert chunk_sizes([10, 100], num_decoding, 6) == expected
