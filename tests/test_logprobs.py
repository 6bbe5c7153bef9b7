"""Logprobs: transformers' own log-softmax of the raw logits, whatever was drafted, accepted or asked beside them."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from echo_sched.engine.draft.ngram import NGramDrafter
from echo_sched.engine.logprobs import LOWEST, row_logprobs
from echo_sched.errors import RequestError
from echo_sched.loop import DecodeLoop
from echo_sched.loop import logprobs as logprobs_module
from echo_sched.types import LogprobParams, Request, SamplingParams, TokenEvent, TokenLogprobs
from tests.loops import mixed_requests, processed_requests, references, scripted, tiny_loop, tiny_target
from tests.tiny_models import decode, random_prompt, tiny_model

WANTED = [
    LogprobParams(),
    LogprobParams(top_logprobs_num=3),
    LogprobParams(logprob_start_len=0),
    None,
    LogprobParams(top_logprobs_num=20, logprob_start_len=2),
    LogprobParams(logprob_start_len=1, return_text=True),
]


def asking(count: int) -> list[Request]:
    """Requests of every kind, most of which want to know something."""
    requests = [r for pair in zip(mixed_requests(count), processed_requests(count), strict=True) for r in pair]
    for index, request in enumerate(requests):
        wanted = WANTED[index % len(WANTED)]
        if wanted is not None:  # a start behind the prompt is an error
            wanted = replace(wanted, logprob_start_len=min(wanted.logprob_start_len, len(request.prompt_ids)))
        request.logprobs = wanted
    return requests


class Collected:
    """All that the events of a run said, by request."""

    def __init__(self, loop: DecodeLoop, requests: list[Request]) -> None:
        self.output: dict[str, list[TokenLogprobs]] = {request.request_id: [] for request in requests}
        self.prompt: dict[str, list[TokenLogprobs]] = {request.request_id: [] for request in requests}
        self.longest_run = 0
        for request in requests:
            loop.add(request)
        while loop.has_work:
            for event in loop.step():
                self._take(event)

    def _take(self, event: TokenEvent) -> None:
        name, asked = event.request.request_id, event.request.logprobs is not None
        assert [item.token.token_id for item in event.logprobs] == list(event.token_ids if asked else ())
        assert not event.prompt_logprobs or len(event.request.output_ids) == len(event.token_ids), (
            "with the first token"
        )
        self.output[name] += event.logprobs
        self.prompt[name] += event.prompt_logprobs
        self.longest_run = max(self.longest_run, len(event.logprobs) - 1)


@cache
def transformers_logprobs(family: str, tokens: tuple[int, ...]) -> torch.Tensor:
    """[len(tokens), V]: row i says how likely each token is to follow tokens[: i + 1]."""
    with torch.no_grad():
        return torch.log_softmax(tiny_model(family)(torch.tensor([tokens])).logits[0].float(), dim=-1)


def check(collected: Collected, requests: list[Request], family: str) -> None:
    for request in requests:
        params = request.logprobs
        output, prompt = collected.output[request.request_id], collected.prompt[request.request_id]
        if params is None:
            assert not output and not prompt
            continue
        tokens, num_prompt = (*request.prompt_ids, *request.output_ids), len(request.prompt_ids)
        expected = transformers_logprobs(family, tokens)
        start = num_prompt if params.logprob_start_len < 0 else params.logprob_start_len
        assert [item.token.token_id for item in prompt] == list(request.prompt_ids[start:])
        assert len(output) == len(request.output_ids)
        if prompt:
            assert prompt[0].token.value is None and prompt[0].top == ()
        numbered = [(start + place, item) for place, item in enumerate(prompt) if place]
        numbered += [(num_prompt + place, item) for place, item in enumerate(output)]
        for place, item in numbered:
            row = expected[place - 1]
            assert item.token.value == pytest.approx(float(row[item.token.token_id]), abs=2e-6), request.request_id
            assert item.token.text == (decode([item.token.token_id]) if params.return_text else None)
            best = np.argsort(-row.numpy(), kind="stable")[: params.top_logprobs_num].tolist()
            assert [top.token_id for top in item.top] == best
            assert [top.value for top in item.top] == pytest.approx(row[best].tolist(), abs=2e-6)


@pytest.mark.parametrize("policy", ["off", "static", "echo"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_logprobs_are_transformers_log_softmax_inside_accepted_runs_too(family: str, policy: str) -> None:
    drafter = scripted(family, 8, (0.95,), make=asking)
    loop = tiny_loop(tiny_target(family), drafter, policy=policy, max_depth=6, k_max=60, chunk_tokens=5)
    requests = asking(8)
    collected = Collected(loop, requests)
    check(collected, requests, family)
    for request in requests:  # and asking changed no token
        assert request.output_ids == references(family, 8, asking)[request.request_id].output_ids
    assert policy == "off" or collected.longest_run >= 3


@pytest.mark.parametrize("chunk_tokens", [1, 2, 200])
def test_prompts_may_come_in_any_chunks(chunk_tokens: int) -> None:
    requests = []
    for start in (-1, 0, 1, 4, 8, 9):
        params = LogprobParams(top_logprobs_num=2, logprob_start_len=start)
        greedy = SamplingParams(max_new_tokens=3, temperature=0.0)
        requests.append(Request(f"from {start}", random_prompt(9), greedy, logprobs=params))
    loop = tiny_loop(tiny_target(), NGramDrafter(), chunk_tokens=chunk_tokens)
    check(Collected(loop, requests), requests, "llama")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_exact_numerics_they_are_bitwise_those_of_plain_decoding(dtype: torch.dtype) -> None:
    target = tiny_target(dtype=dtype, numerics="exact", num_slots=8)
    plain = asking(4)
    alone = Collected(tiny_loop(target, NGramDrafter(), policy="off", max_batch_size=1), plain)
    drafter = scripted("llama", 4, (0.95,), make=asking)
    drafter.continuations = {request.request_id: request.output_ids for request in plain}
    together = Collected(tiny_loop(target, drafter, max_batch_size=8, max_depth=6, k_max=60), asking(4))
    assert together.longest_run >= 3
    assert (together.output, together.prompt) == (alone.output, alone.prompt)


def test_a_planted_wrong_row_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a token inside a run is judged by the row before the right one."""
    right = logprobs_module.row_logprobs

    def wrong(logits: torch.Tensor, *rest: Any) -> Any:
        return right(torch.cat([logits[:1], logits[:-1]]), *rest)

    monkeypatch.setattr(logprobs_module, "row_logprobs", wrong)
    requests = asking(8)
    loop = tiny_loop(tiny_target(), scripted("llama", 8, (0.95,), make=asking), max_batch_size=1, max_depth=6)
    with pytest.raises(AssertionError):
        check(Collected(loop, requests), requests, "llama")


def test_nobody_pays_for_what_nobody_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def unexpected(*_: Any) -> None:
        raise AssertionError("nobody asked")

    monkeypatch.setattr(logprobs_module, "row_logprobs", unexpected)
    requests = mixed_requests(8)
    collected = Collected(tiny_loop(tiny_target(), NGramDrafter()), requests)
    assert not any(collected.output.values()) and not any(collected.prompt.values())


# --- rows -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [2, 63, 1000, 49_152])
def test_a_row_is_its_own_log_softmax_whatever_is_beside_it(dtype: torch.dtype, vocab_size: int) -> None:
    numbers = torch.Generator().manual_seed(vocab_size)
    logits = (torch.randn(23, vocab_size, generator=numbers) * 4).to(dtype)
    tokens = [(7 * row) % vocab_size for row in range(23)]
    tops = [row % 4 for row in range(23)]
    together = row_logprobs(logits, tokens, tops)
    assert together == [row_logprobs(logits[r : r + 1], tokens[r : r + 1], tops[r : r + 1])[0] for r in range(23)]
    assert together[::-1] == row_logprobs(logits.flip(0), tokens[::-1], tops[::-1])
    expected = torch.log_softmax(logits.float(), dim=-1)
    for row, found in enumerate(together):
        assert found.value == float(expected[row, tokens[row]])
        order = np.argsort(-logits[row].double().numpy(), kind="stable")[: tops[row]].tolist()
        assert list(found.top) == [(token, float(expected[row, token])) for token in order]


def test_what_is_impossible_has_the_lowest_number_since_json_has_no_infinity() -> None:
    (found,) = row_logprobs(torch.tensor([[0.0, -torch.inf, 0.0]]), [1], [3])
    assert found.value == LOWEST and np.isfinite(found.value)
    assert found.top[:2] == ((0, pytest.approx(-np.log(2))), (2, pytest.approx(-np.log(2))))


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"), [("top_logprobs_num", 21), ("top_logprobs_num", -1), ("logprob_start_len", -2)]
)
def test_out_of_range_is_refused_by_name(field: str, value: int) -> None:
    with pytest.raises(RequestError, match=field) as caught:
        LogprobParams(**{field: value})
    assert caught.value.param == field


def test_a_start_behind_the_prompt_is_refused_by_name() -> None:
    loop = tiny_loop(tiny_target(), NGramDrafter())
    for start, good in ((3, True), (4, False)):
        request = Request("a", (1, 2, 3), SamplingParams(), logprobs=LogprobParams(logprob_start_len=start))
        if good:
            loop.add(request)
            loop.cancel("a")
        else:
            with pytest.raises(RequestError, match="logprob_start_len"):
                loop.add(request)
