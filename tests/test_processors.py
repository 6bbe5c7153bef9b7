"""Logits processors: transformers' own where it has them, the naive twin, and rows that do not know each other."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    LogitsProcessor,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from echo_sched.engine import processors as processors_module
from echo_sched.engine.choice import draw, margin, processed
from echo_sched.engine.processors import History, make_history, process
from echo_sched.engine.sampling import sample
from echo_sched.types import SamplingParams

VOCAB_SIZE = 90
EOS_IDS = (7, 50)
PROMPT, OUTPUT = (4, 4, 9, 61), (9, 30, 9, 2)


def row_of(seed: int, vocab_size: int = VOCAB_SIZE) -> torch.Tensor:
    return torch.randn(1, vocab_size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3


def history_of(params: SamplingParams, prompt: Any = PROMPT, output: Any = OUTPUT) -> History:
    history = make_history(params, prompt, EOS_IDS)
    assert history is not None
    for token in output:
        history.push(token)
    return history


def theirs(params: SamplingParams, prompt_len: int) -> LogitsProcessorList:
    """transformers' processors for these params; it has none for presence and frequency."""
    ends = sorted(params.ends_with(EOS_IDS))
    found: dict[str, LogitsProcessor] = {}
    if params.repetition_penalty != 1.0:
        found["repetition"] = RepetitionPenaltyLogitsProcessor(params.repetition_penalty)
    if params.logit_bias:
        found["bias"] = SequenceBiasLogitsProcessor({(token,): bias for token, bias in params.logit_bias})
    if params.allowed_token_ids is not None:
        allowed = list(params.allowed_token_ids)
        found["allowed"] = PrefixConstrainedLogitsProcessor(lambda _batch, _ids: allowed, 1)
    if params.bad_token_ids:
        found["bad"] = SuppressTokensLogitsProcessor(list(params.bad_token_ids))
    if params.min_new_tokens:
        found["min"] = MinNewTokensLengthLogitsProcessor(prompt_len, params.min_new_tokens, ends)
    return LogitsProcessorList(found.values())


THEIRS = [
    SamplingParams(repetition_penalty=1.3),
    SamplingParams(repetition_penalty=0.4),
    SamplingParams(logit_bias=((3, -2.5), (9, 4.0))),
    SamplingParams(allowed_token_ids=(2, 9, 50)),
    SamplingParams(bad_token_ids=(2, 9, 50)),
    SamplingParams(min_new_tokens=5),
    SamplingParams(min_new_tokens=4),
    SamplingParams(min_new_tokens=5, stop_token_ids=(11,), ignore_eos=True),
    SamplingParams(
        repetition_penalty=1.7,
        logit_bias=((9, 1.0),),
        bad_token_ids=(1, 2),
        allowed_token_ids=(2, 7, 9, 50),
        min_new_tokens=6,
    ),
]


@pytest.mark.parametrize("params", THEIRS)
def test_processors_are_transformers_processors(params: SamplingParams) -> None:
    row = row_of(0)
    ids = torch.tensor([[*PROMPT, *OUTPUT]])
    expected = theirs(params, len(PROMPT))(ids, row.clone())[0].numpy()
    twin = processed(row[0].numpy(), params, PROMPT, OUTPUT, EOS_IDS)
    fast = process(row, [history_of(params)])[0].numpy()
    assert (twin == expected).all()
    assert (fast == expected).all()
    assert (expected != row[0].numpy()).any() or params.min_new_tokens == len(OUTPUT)


def test_presence_and_frequency_count_the_output_only_and_repetition_the_prompt_too() -> None:
    row = torch.full((1, VOCAB_SIZE), 2.0, dtype=torch.float64)
    row[0, 9] = -2.0
    cases: list[tuple[dict[str, float], dict[int, float]]] = [
        ({"presence_penalty": 0.5}, {9: -2.5, 30: 1.5, 2: 1.5, 4: 2.0, 61: 2.0}),
        ({"frequency_penalty": 0.5}, {9: -3.0, 30: 1.5, 2: 1.5, 4: 2.0, 61: 2.0}),
        ({"frequency_penalty": -0.5, "presence_penalty": 2.0}, {9: -3.0, 30: 0.5, 4: 2.0}),
        ({"repetition_penalty": 2.0}, {9: -4.0, 30: 1.0, 2: 1.0, 4: 1.0, 61: 1.0, 5: 2.0}),
        ({"repetition_penalty": 2.0, "presence_penalty": 1.0}, {9: -5.0, 30: 0.0, 4: 1.0, 5: 2.0}),
    ]
    for fields, expected in cases:
        params = SamplingParams(**fields)  # type: ignore[arg-type]
        for got in (
            process(row, [history_of(params)])[0].numpy(),
            processed(row[0].numpy(), params, PROMPT, OUTPUT, EOS_IDS),
        ):
            assert {token: got[token] for token in expected} == expected


# --- the engine against the naive twin --------------------------------------------------------------------------------

ids = st.integers(0, VOCAB_SIZE - 1)
penalties = st.sampled_from([0.0, 0.0, -2.0, -0.3, 0.7, 2.0])


@st.composite
def any_params(pick: st.DrawFn) -> SamplingParams:
    allowed = pick(st.none() | st.sets(ids, min_size=1, max_size=30))
    bad = pick(st.sets(ids, max_size=20)) - (allowed or set())
    return SamplingParams(
        temperature=pick(st.sampled_from([0.0, 0.6, 1.5])),
        top_p=pick(st.sampled_from([1.0, 0.8])),
        min_p=pick(st.sampled_from([0.0, 0.05])),
        seed=pick(st.integers(0, 5)),
        repetition_penalty=pick(st.sampled_from([1.0, 1.0, 1e-3, 0.5, 1.2, 2.0])),
        presence_penalty=pick(penalties),
        frequency_penalty=pick(penalties),
        logit_bias=tuple(pick(st.dictionaries(ids, st.floats(-40, 40), max_size=8)).items()),
        allowed_token_ids=None if allowed is None else tuple(allowed),
        bad_token_ids=tuple(bad),
        min_new_tokens=pick(st.sampled_from([0, 0, 1, 6, 7])),
        stop_token_ids=tuple(pick(st.sets(ids, max_size=4))),
        ignore_eos=pick(st.booleans()),
    )


@settings(max_examples=150)
@given(
    st.lists(st.tuples(any_params(), st.lists(ids, min_size=1, max_size=12), st.integers(0, 12)), max_size=4),
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    st.integers(0, 10**6),
)
def test_whole_histories_choose_what_the_naive_twin_chooses(
    cases: list[tuple[SamplingParams, list[int], int]], dtype: torch.dtype, seed: int
) -> None:
    """Token by token, in one batch: the rows equal the twin's bit for bit, and so do the tokens drawn from them."""
    outputs: list[list[int]] = [[] for _ in cases]
    histories = [make_history(params, prompt, EOS_IDS) for params, prompt, _ in cases]
    for step in range(max((length for *_, length in cases), default=0)):
        logits = (torch.randn(len(cases), VOCAB_SIZE, generator=torch.Generator().manual_seed(seed + step)) * 3).to(
            dtype
        )
        before = logits.clone()
        twins = [
            processed(row, params, prompt, output, EOS_IDS)
            for row, (params, prompt, _), output in zip(logits.double().numpy(), cases, outputs, strict=True)
        ]
        going = [i for i, twin in enumerate(twins) if np.isfinite(twin.max()) and step < cases[i][2]]
        edited = [i for i in going if (history := histories[i]) is not None and history.active]
        rows = {i: logits[i].double() for i in going}
        if edited:
            rows |= dict(zip(edited, process(logits[edited], [histories[i] for i in edited]), strict=True))
        assert torch.equal(logits, before), "the model's rows are read only"
        for i in going:
            assert np.array_equal(rows[i].numpy(), twins[i])
            params, prompt, _ = cases[i]
            position = len(prompt) + step
            token = draw(twins[i], params, position)
            assert sample(rows[i][None], [params], [position]) == [token]
            assert margin(twins[i], params, position) >= 0.0
            outputs[i].append(token)
            if (history := histories[i]) is not None:
                history.push(token)


def test_neighbours_change_nothing() -> None:
    numbers = random.Random(3)
    params = [*THEIRS, SamplingParams(presence_penalty=1.0), SamplingParams(frequency_penalty=-2.0)]
    outputs = [[numbers.randrange(VOCAB_SIZE) for _ in range(20)] for _ in params]
    for dtype in (torch.float32, torch.bfloat16):
        rows = torch.cat([row_of(seed) for seed in range(len(params))]).to(dtype)
        histories = [history_of(param, output=output) for param, output in zip(params, outputs, strict=True)]
        together = process(rows, histories)
        backwards = process(rows.flip(0), histories[::-1]).flip(0)
        alone = torch.cat([process(rows[i : i + 1], [history]) for i, history in enumerate(histories)])
        assert together.dtype == torch.float64
        assert torch.equal(together, alone) and torch.equal(together, backwards)


def test_a_history_is_kept_up_to_date_and_never_counted_again() -> None:
    """What a token costs does not grow with the output before it: no pass over the ids, only one line touched."""
    params = SamplingParams(max_new_tokens=4000, repetition_penalty=1.1, presence_penalty=0.2)
    history = History(params, range(VOCAB_SIZE), EOS_IDS)
    arrays = [value for value in vars(history).values() if isinstance(value, np.ndarray)]
    for token in range(4000):
        history.push(token % VOCAB_SIZE)
    assert all(any(value is array for value in vars(history).values()) for array in arrays), "written in place"
    assert len(history.entries.ids) == VOCAB_SIZE
    assert history.entries.counts.sum() == 4000


def test_params_that_leave_the_logits_alone_have_no_history() -> None:
    assert make_history(SamplingParams(top_p=0.5, stop_token_ids=(3,), seed=4), PROMPT, EOS_IDS) is None
    early = history_of(SamplingParams(min_new_tokens=5))
    assert early.active
    early.push(3)
    assert not early.active, "min_new_tokens are out"
    assert not history_of(SamplingParams(presence_penalty=1.0), output=()).active, "nothing was put out yet"


def test_a_margin_is_that_of_the_processed_logits() -> None:
    row = np.array([1.0, 4.0, 3.25, 9.0])
    params = SamplingParams(temperature=0.0, bad_token_ids=(3,), repetition_penalty=2.0, logit_bias=((2, 0.5),))
    assert margin(processed(row, params, (1,), (), ()), params, 1) == (3.25 + 0.5) - 4.0 / 2.0
    only = SamplingParams(temperature=0.0, allowed_token_ids=(2,))
    assert margin(processed(row, only, (1,), (), ()), only, 1) == np.inf


def test_the_host_sees_only_the_logits_that_change(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    right = processors_module._edit

    def counted(logits: np.ndarray, *rest: Any) -> np.ndarray:
        sizes.append(logits.size)
        return right(logits, *rest)

    monkeypatch.setattr(processors_module, "_edit", counted)
    histories = [history_of(SamplingParams(repetition_penalty=1.2)), history_of(SamplingParams(bad_token_ids=(1, 2)))]
    process(torch.cat([row_of(0), row_of(1)]), histories)
    assert sizes == [len({*PROMPT, *OUTPUT}) + 2]
