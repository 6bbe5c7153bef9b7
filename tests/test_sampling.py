"""The race draws from p, the filters are transformers' filters, and the engine's shortcuts change nothing."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from echo_sched.engine.choice import draw, final_distribution, margin
from echo_sched.engine.race import HEAD_SIZE, HEAD_STREAM, TAIL_STREAM, uniforms
from echo_sched.engine.sampling import leading, sample
from echo_sched.params import choice_seed
from echo_sched.types import MAX_SEED, SamplingParams

GREEDY = SamplingParams(temperature=0.0)
PLAIN = SamplingParams()
FILTERS = [
    SamplingParams(temperature=0.7),
    SamplingParams(top_k=1),
    SamplingParams(top_k=7),
    SamplingParams(top_k=HEAD_SIZE),
    SamplingParams(top_k=HEAD_SIZE + 20),
    SamplingParams(top_k=10**6),
    SamplingParams(top_p=0.3),
    SamplingParams(top_p=0.9, temperature=1.5),
    SamplingParams(top_p=0.999, temperature=3.0),
    SamplingParams(top_p=1e-9),
    SamplingParams(min_p=0.1),
    SamplingParams(min_p=1.0),
    SamplingParams(min_p=0.001, temperature=4.0),
    SamplingParams(top_k=20, top_p=0.8, min_p=0.05, temperature=0.9),
    SamplingParams(top_k=100, top_p=0.99, min_p=1e-4, temperature=2.5),
    SamplingParams(temperature=0.01, top_p=0.5),
]
FILTER_NAMES = [f"T{p.temperature}-k{p.top_k}-p{p.top_p}-m{p.min_p}" for p in FILTERS]


def random_logits(rows: int, vocab_size: int, seed: int = 0, scale: float = 2.5) -> torch.Tensor:
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def chi_square(counts: np.ndarray, p: np.ndarray) -> float:
    """Standard deviations by which the statistic exceeds its mean (cells of small expectation pooled)."""
    expected = p * counts.sum()
    large = expected >= 5.0
    observed = np.append(counts[large], counts[~large].sum())
    expected = np.append(expected[large], expected[~large].sum())
    observed, expected = observed[expected > 0], expected[expected > 0]
    freedom = len(expected) - 1
    return float((((observed - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


# --- the law of the race ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vary", ["seed", "position"])
@pytest.mark.parametrize(
    ("vocab_size", "params", "scale"),
    [
        (5, PLAIN, 1.0),
        (HEAD_SIZE, PLAIN, 1.0),
        (300, PLAIN, 1.0),  # most of the mass is the tail's
        (300, SamplingParams(temperature=1.3, top_p=0.9), 1.0),
        (300, SamplingParams(top_k=8, min_p=0.2), 2.0),
    ],
)
def test_draws_follow_p(vary: str, vocab_size: int, params: SamplingParams, scale: float) -> None:
    num_draws = 5_000
    logits = random_logits(1, vocab_size, seed=vocab_size, scale=scale)
    seeds = range(num_draws) if vary == "seed" else [11] * num_draws
    positions = [7] * num_draws if vary == "seed" else range(num_draws)
    keyed = {seed: SamplingParams(**(vars(params) | {"seed": seed})) for seed in set(seeds)}
    drawn = sample(logits.expand(num_draws, -1), [keyed[seed] for seed in seeds], list(positions))
    counts = np.bincount(drawn, minlength=vocab_size)
    p = final_distribution(logits[0].numpy(), params)
    assert (counts[p == 0.0] == 0).all(), "a token of probability 0 never arrives"
    assert abs(chi_square(counts, p)) < 4.0
    if params == PLAIN and vocab_size > HEAD_SIZE:
        tail = np.argsort(-logits[0].numpy())[HEAD_SIZE:]
        assert counts[tail].sum() > num_draws / 5, "the tail runner must be exercised"


def test_a_wrong_law_is_noticed() -> None:
    p = np.full(20, 0.05)
    tilted = np.linspace(0.9, 1.1, 20) * p
    assert chi_square(tilted * 20_000, p) > 4.0


def test_keys_are_independent() -> None:
    """Neighbouring seeds, positions, ids and streams give uncorrelated uniform numbers."""
    grid = np.arange(40_000)
    base = uniforms(5, 9, grid, HEAD_STREAM)
    assert 0.0 < base.min() < base.max() <= 1.0
    assert abs(chi_square(np.bincount((base * 100).astype(int), minlength=100)[:100], np.full(100, 0.01))) < 4.0
    others = [
        uniforms(6, 9, grid, HEAD_STREAM),
        uniforms(5, 10, grid, HEAD_STREAM),
        uniforms(5, 9, grid, TAIL_STREAM),
        uniforms(9, 5, grid, HEAD_STREAM),
        uniforms(5, 9, grid + 1, HEAD_STREAM),
        uniforms(grid, 9, 5, HEAD_STREAM),
        uniforms(5, grid, 9, HEAD_STREAM),
        uniforms(MAX_SEED, 9, grid, HEAD_STREAM),
    ]
    for other in others:
        assert abs(np.corrcoef(base, other)[0, 1]) < 4.0 / np.sqrt(grid.size)


def test_the_numbers_of_a_key_never_change() -> None:
    """Published seeds keep their meaning: these values are frozen."""
    assert uniforms([0, 1, MAX_SEED], [0, 17, 3], [0, 49151, 2], HEAD_STREAM).tolist() == FROZEN


FROZEN = [0.12964561829974747, 0.34825219480917863, 0.7538897610454494]


def test_seeds_of_further_answers_are_splitmix64s_and_differ() -> None:
    """The published first numbers of state 1234567, cut to what JSON readers keep; and no seed meets another's."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [choice_seed(1234567, k) for k in range(5)] == [1234567, *(number >> 11 for number in published)]
    seeds = {choice_seed(seed, k) for seed in (0, 1, 2, MAX_SEED) for k in range(1000)}
    assert len(seeds) == 4000 and max(seeds - {MAX_SEED}) < 2**53


# --- filters ----------------------------------------------------------------------------------------------------------


def transformers_distribution(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    warpers = LogitsProcessorList([TemperatureLogitsWarper(params.temperature)])
    if params.top_k != -1:
        warpers.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        warpers.append(TopPLogitsWarper(params.top_p))
    if params.min_p > 0.0:
        warpers.append(MinPLogitsWarper(params.min_p))
    return torch.softmax(warpers(torch.zeros(len(logits), 1, dtype=torch.long), logits.clone()), dim=-1)


@pytest.mark.parametrize("params", FILTERS, ids=FILTER_NAMES)
def test_filters_are_transformers_filters(params: SamplingParams) -> None:
    logits = random_logits(40, 150)
    theirs = transformers_distribution(logits, params).numpy()
    ours = np.array([final_distribution(row, params) for row in logits.numpy()])
    assert ((ours > 0) == (theirs > 0)).all()
    assert np.abs(ours - theirs).max() < 1e-12


def test_ties_at_a_boundary_stay_by_lowest_id() -> None:
    logits = torch.tensor([[0.0, 1.0, 0.0, 1.0, 0.0, 0.0]], dtype=torch.float64).numpy()[0]
    support = [
        np.flatnonzero(final_distribution(logits, params)).tolist()
        for params in (SamplingParams(top_k=3), SamplingParams(top_k=1), SamplingParams(top_p=0.65))
    ]
    assert support == [[0, 1, 3], [1], [0, 1, 3]]


# --- the engine against the naive twin --------------------------------------------------------------------------------


def bfloat16_ties(rows: int, vocab_size: int) -> torch.Tensor:
    return random_logits(rows, vocab_size, seed=2).bfloat16()


def flat(rows: int, vocab_size: int) -> torch.Tensor:
    return torch.zeros(rows, vocab_size)


def few_levels(rows: int, vocab_size: int) -> torch.Tensor:
    return random_logits(rows, vocab_size, seed=3, scale=1.0).round().float()


def peaked(rows: int, vocab_size: int) -> torch.Tensor:
    logits = random_logits(rows, vocab_size, seed=4, scale=0.5).float()
    logits[:, ::17] += 9.0
    return logits


def masked(rows: int, vocab_size: int) -> torch.Tensor:
    logits = random_logits(rows, vocab_size, seed=5)
    logits[:, 40:] = -torch.inf
    return logits


@pytest.mark.parametrize("vocab_size", [1, 3, HEAD_SIZE, HEAD_SIZE + 1, 200, 20_000])
@pytest.mark.parametrize("make", [random_logits, bfloat16_ties, flat, few_levels, peaked, masked])
def test_engine_draws_what_the_naive_twin_draws(make: Callable[[int, int], torch.Tensor], vocab_size: int) -> None:
    settings = [GREEDY, PLAIN, SamplingParams(temperature=5.0), *FILTERS]
    rows = (4 if vocab_size < 20_000 else 1) * len(settings)
    logits = make(rows, vocab_size)
    params = [SamplingParams(**(vars(settings[row % len(settings)]) | {"seed": row * 7919})) for row in range(rows)]
    positions = [3 * row for row in range(rows)]
    naive = [draw(logits[row].double().numpy(), params[row], positions[row]) for row in range(rows)]
    assert sample(logits, params, positions) == naive


def test_neighbours_change_nothing() -> None:
    logits = bfloat16_ties(34, 500)
    params = [SamplingParams(**(vars(([GREEDY, PLAIN, *FILTERS])[row % 18]) | {"seed": row})) for row in range(34)]
    positions = list(range(34))
    together = sample(logits, params, positions)
    alone = [sample(logits[row : row + 1], params[row : row + 1], [row])[0] for row in range(34)]
    backwards = sample(logits.flip(0), params[::-1], positions[::-1])[::-1]
    assert together == alone == backwards


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab_size", [2, 63, 1000, 49_152])
def test_greedy_ties_go_to_the_lowest_id(dtype: torch.dtype, vocab_size: int) -> None:
    logits = random_logits(6, vocab_size).to(dtype)
    numbers = np.random.default_rng(0)
    expected = []
    for row in range(6):
        tied = sorted(numbers.choice(vocab_size, size=2, replace=False).tolist())
        logits[row, tied] = 50.0
        expected.append(tied[0])
    assert sample(logits, [GREEDY] * 6, [0] * 6) == expected


@pytest.mark.parametrize("count", [1, HEAD_SIZE, 300])
@pytest.mark.parametrize("vocab_size", [63, 301, 701, 10_007])
@pytest.mark.parametrize("make", [random_logits, bfloat16_ties, flat, few_levels, masked])
def test_leading_is_a_stable_sort_cut_short(
    make: Callable[[int, int], torch.Tensor], vocab_size: int, count: int
) -> None:
    logits = make(5, vocab_size)
    logits[3] = logits[3].flip(0)
    ids, values = leading(logits, count)
    order = np.argsort(-logits.double().numpy(), axis=1, kind="stable")[:, :count]
    expected = np.take_along_axis(logits.double().numpy(), order, axis=1)
    assert (values == expected).all()
    assert (ids == order)[np.isfinite(expected)].all()  # tokens that are ruled out have no place


# --- margins ----------------------------------------------------------------------------------------------------------


def test_greedy_margin_is_the_gap() -> None:
    assert margin(np.array([1.0, 4.0, 3.25]), GREEDY, 0) == 0.75


@pytest.mark.parametrize("params", [GREEDY, PLAIN, *FILTERS], ids=["greedy", "plain", *FILTER_NAMES])
def test_noise_below_the_margin_changes_no_choice(params: SamplingParams) -> None:
    """And noise well above it does, for some: so the margin is neither too wide nor empty."""
    numbers = np.random.default_rng(1)
    num_forks = 0
    for row, logits in enumerate(random_logits(16, 130).numpy()):
        keyed = SamplingParams(**(vars(params) | {"seed": row}))
        chosen, distance = draw(logits, keyed, row), margin(logits, keyed, row)
        assert distance >= 0.0
        if not np.isfinite(distance):
            continue
        for _ in range(4):
            noise = numbers.uniform(-1, 1, logits.size)
            assert draw(logits + 0.2 * distance * noise, keyed, row) == chosen
            num_forks += draw(logits + 10.0 * distance * noise, keyed, row) != chosen
    assert num_forks > 0
