"""The slow twin against transformers' own generate, and where it stops."""

import pytest
import torch

from echo_sched.engine.reference import reference_decode
from echo_sched.types import FinishReason, SamplingParams
from tests.tiny_models import FAMILIES, SLIDING_WINDOW, decode, random_prompt, tiny_model

PROMPT = random_prompt(10)
GREEDY = SamplingParams(temperature=0.0, max_new_tokens=SLIDING_WINDOW + 10)
SAMPLED = SamplingParams(temperature=1.2, top_k=40, top_p=0.95, seed=3, max_new_tokens=24)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_is_generate_and_varies(family: str) -> None:
    model = tiny_model(family)
    with torch.no_grad():
        generated = model.generate(
            torch.tensor([PROMPT]),
            attention_mask=torch.ones(1, len(PROMPT), dtype=torch.long),
            do_sample=False,
            max_new_tokens=GREEDY.max_new_tokens,
        )
    result = reference_decode(model, PROMPT, GREEDY, eos_ids=[])
    assert result.output_ids == generated[0, len(PROMPT) :].tolist()
    assert result.finish == FinishReason("length")
    assert len(set(result.output_ids)) > 8, "a constant text tests nothing"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_cache_changes_nothing(family: str) -> None:
    model = tiny_model(family)
    whole = reference_decode(model, PROMPT, SAMPLED, eos_ids=[])
    cached = reference_decode(model, PROMPT, SAMPLED, eos_ids=[], use_cache=True)
    assert whole.output_ids == cached.output_ids
    assert whole.margins == pytest.approx(cached.margins, abs=1e-6)


def test_the_seed_decides_and_nothing_else_does() -> None:
    model = tiny_model("llama")
    params = [SamplingParams(seed=seed, max_new_tokens=12) for seed in (1, 1, 2)]
    outputs = [reference_decode(model, PROMPT, param, eos_ids=[]).output_ids for param in params]
    assert outputs[0] == outputs[1] != outputs[2]


def test_ends_with_the_first_token_that_ends_it() -> None:
    model = tiny_model("llama")
    plain = reference_decode(model, PROMPT, GREEDY, eos_ids=[]).output_ids
    sixth, length = plain[5], plain.index(plain[5]) + 1

    eos = reference_decode(model, PROMPT, GREEDY, eos_ids=[999, sixth])
    assert (eos.output_ids, eos.finish) == (plain[:length], FinishReason("stop", sixth))

    stopping = SamplingParams(temperature=0.0, max_new_tokens=26, stop_token_ids=(sixth,), ignore_eos=True)
    stopped = reference_decode(model, PROMPT, stopping, eos_ids=[plain[0]])
    assert (stopped.output_ids, stopped.finish) == (plain[:length], FinishReason("stop", sixth))
    assert len(stopped.margins) == length

    last = SamplingParams(temperature=0.0, max_new_tokens=length)
    both = reference_decode(model, PROMPT, last, eos_ids=[sixth])
    assert both.finish == FinishReason("stop", sixth), "a stop outranks the length"


def test_a_stop_string_may_span_tokens() -> None:
    model = tiny_model("llama")
    plain = reference_decode(model, PROMPT, GREEDY, eos_ids=[]).output_ids
    stop = decode(plain[3:6])
    params = SamplingParams(temperature=0.0, max_new_tokens=26, stop=("never this", stop))
    result = reference_decode(model, PROMPT, params, eos_ids=[], decode=decode)
    end = next(n for n in range(1, len(plain)) if stop in decode(plain[:n]))
    assert (result.output_ids, result.finish) == (plain[:end], FinishReason("stop", stop))
