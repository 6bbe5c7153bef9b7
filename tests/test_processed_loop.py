"""Logits processors under speculation: counted along the walk, so that the tokens are those of plain decoding."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from echo_sched.engine import accept as accept_module
from echo_sched.engine.accept import Walk, accept
from echo_sched.engine.draft.ngram import NGramDrafter
from echo_sched.engine.processors import History, make_history
from echo_sched.errors import RequestError
from echo_sched.loop import DecodeLoop
from echo_sched.loop import drawing as drawing_module
from echo_sched.loop import emission as emission_module
from echo_sched.types import Request, SamplingParams
from tests.loops import (
    EOS_ID,
    assert_equal_to_reference,
    mixed_requests,
    processed_requests,
    references,
    run,
    scripted,
    tiny_loop,
    tiny_target,
)
from tests.tiny_models import VOCAB_SIZE, random_prompt

MAX_DEPTH = 6


def both(count: int) -> list[Request]:
    """Requests with processors and without, in turn."""
    pairs = zip(processed_requests(count), mixed_requests(count), strict=True)
    return [request for pair in pairs for request in pair]


def busy_loop(family: str = "llama", count: int = 8, make: Any = processed_requests, **more: Any) -> DecodeLoop:
    """Deep trees that are mostly right."""
    drafter = scripted(family, count, (0.95,), make=make)
    return tiny_loop(tiny_target(family, num_slots=8), drafter, **{"max_depth": MAX_DEPTH, "k_max": 60} | more)


@pytest.mark.parametrize("policy", ["off", "static", "dynamic", "echo"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
def test_every_field_is_honoured_exactly_under_every_policy(family: str, policy: str) -> None:
    loop = busy_loop(family, policy=policy, max_batch_size=8)
    assert_equal_to_reference(loop, family, 8, processed_requests)


@pytest.mark.parametrize("settings", [{"max_batch_size": 1}, {"k_max": 3}, {"gate": "none"}, {"chunk_tokens": 2}])
def test_nor_do_batch_budget_gate_and_chunks_change_anything(settings: dict[str, Any]) -> None:
    assert_equal_to_reference(busy_loop(**settings), "llama", 8, processed_requests)


def test_neighbours_with_and_without_processors_share_every_step() -> None:
    requests = assert_equal_to_reference(busy_loop(make=both, max_batch_size=8), "llama", 8, both)
    assert {request.request_id[0] for request in requests} == {"p", "r"}
    target = tiny_target()
    assert_equal_to_reference(tiny_loop(target, NGramDrafter()), "llama", 8, both)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_exact_numerics_stay_bitwise(dtype: torch.dtype) -> None:
    target = tiny_target(dtype=dtype, numerics="exact", num_slots=8)
    plain = processed_requests(8)
    run(tiny_loop(target, NGramDrafter(), policy="off", max_batch_size=1), plain)
    drafter = scripted("llama", 8, (0.95,), make=processed_requests)
    drafter.continuations = {request.request_id: request.output_ids for request in plain}
    speculated = processed_requests(8)
    run(tiny_loop(target, drafter, max_depth=MAX_DEPTH, max_batch_size=8, k_max=60), speculated)
    assert [r.output_ids for r in speculated] == [r.output_ids for r in plain]
    assert sum(request.stats.num_accepted for request in speculated) > 50


def test_the_suite_covers_what_it_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long accepted runs under every processor, and tokens that return inside one run, where the path matters."""
    longest: Counter[str] = Counter()
    returning: Counter[str] = Counter()
    ended_inside = set()
    loop = busy_loop(max_batch_size=8, policy="static", branching=1)  # chains: the longest runs
    for request in processed_requests(8):
        loop.add(request)
    while loop.has_work:
        for event in loop.step():
            name, tokens = event.request.request_id, event.token_ids
            longest[name] = max(longest[name], len(tokens) - 1)
            returning[name] += len(set(tokens)) < len(tokens)
            if event.finish is not None and event.finish.type == "stop" and len(tokens) > 1:
                ended_inside.add(name)
    assert set(longest) == {f"p{i}" for i in range(8)} and min(longest.values()) >= 4, longest
    assert all(returning[name] for name in ("p1", "p3", "p5")), returning
    assert ended_inside, "an end that min_new_tokens had put off came inside an accepted run"


def counting_committed_only(logits: Tensor, walks: Sequence[Walk], *rest: Any) -> list[list[int]]:
    """Planted: the path does not count, only what was committed before the step."""
    drawn: list[tuple[History, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(History, "push", lambda history, token: drawn.append((history, token)))
        accepted = accept(logits, walks, *rest)
    for history, token in drawn:
        history.push(token)
    return accepted


def counting_siblings(logits: Tensor, walks: Sequence[Walk], *rest: Any) -> list[list[int]]:
    """Planted: a node counts its siblings too."""
    histories = {id(walk.tree): walk.history for walk in walks}
    right = accept_module.DraftTree.child

    def child(tree: Any, node: int, token: int) -> int | None:
        history = histories[id(tree)]
        for parent, other in zip(tree.parents, tree.tokens, strict=True):
            if history is not None and parent == node and other != token:
                history.push(other)
                history.num_output -= 1
        return right(tree, node, token)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accept_module.DraftTree, "child", child)
        return accept(logits, walks, *rest)


def roomy_history(params: SamplingParams, *rest: Any) -> History | None:
    """With lines for more tokens than a request can put out."""
    return make_history(replace(params, max_new_tokens=4000), *rest)


@pytest.mark.parametrize("wrong", [counting_committed_only, counting_siblings])
def test_a_planted_wrong_count_is_caught(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing_module, "accept", wrong)
    monkeypatch.setattr(emission_module, "make_history", roomy_history)
    with pytest.raises(AssertionError, match=r"p\d: other tokens"):
        assert_equal_to_reference(busy_loop(), "llama", 8, processed_requests)


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_planted_min_new_tokens_off_by_one_is_caught(shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        History, "_is_early", property(lambda history: history.num_output + shift < history.params.min_new_tokens)
    )
    with pytest.raises(AssertionError, match=r"p\d: other"):
        assert_equal_to_reference(busy_loop(), "llama", 8, processed_requests)


def test_a_planted_stop_string_before_min_new_tokens_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = emission_module.TextStream
    monkeypatch.setattr(emission_module, "TextStream", lambda decode, stop, trim, exempt: right(decode, stop, trim))
    with pytest.raises(AssertionError, match=r"p6: other tokens"):
        assert_equal_to_reference(busy_loop(), "llama", 8, processed_requests)


def test_min_new_tokens_put_off_an_end_by_exactly_so_many_tokens() -> None:
    wanting = SamplingParams(max_new_tokens=20, temperature=0.0, logit_bias=((EOS_ID, 1e6),))
    for minimum in (0, 1, 7, 20):
        params = SamplingParams(**vars(wanting) | {"min_new_tokens": minimum})
        request = Request("a", random_prompt(5), params)
        run(tiny_loop(tiny_target(), NGramDrafter()), [request])
        assert len(request.output_ids) == min(minimum + 1, 20)
        assert (request.output_ids[-1] == EOS_ID) == (minimum < 20)
        assert request.output_ids.count(EOS_ID) <= 1


def test_allowed_and_bad_ids_are_never_broken() -> None:
    request = Request("a", random_prompt(5), SamplingParams(allowed_token_ids=(3, 4, 5), bad_token_ids=(4,), seed=1))
    run(tiny_loop(tiny_target(), NGramDrafter()), [request])
    assert set(request.output_ids) == {3, 5}


EVERYTHING = tuple(range(VOCAB_SIZE))
IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"logit_bias": ((VOCAB_SIZE, 1.0),)}, "logit_bias"),
    ({"allowed_token_ids": (VOCAB_SIZE,)}, "allowed_token_ids"),
    ({"bad_token_ids": (VOCAB_SIZE,)}, "bad_token_ids"),
    ({"stop_token_ids": (VOCAB_SIZE,)}, "stop_token_ids"),
    ({"bad_token_ids": EVERYTHING}, "bad_token_ids"),
    ({"allowed_token_ids": (EOS_ID,), "min_new_tokens": 1}, "min_new_tokens"),
    ({"allowed_token_ids": (3,), "stop_token_ids": (3,), "ignore_eos": True, "min_new_tokens": 1}, "min_new_tokens"),
    ({"bad_token_ids": EVERYTHING[:EOS_ID] + EVERYTHING[EOS_ID + 1 :], "min_new_tokens": 1}, "min_new_tokens"),
]


@pytest.mark.parametrize(("fields", "param"), IMPOSSIBLE)
def test_fields_that_leave_no_token_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    loop = tiny_loop(tiny_target(), NGramDrafter())
    with pytest.raises(RequestError, match=param) as caught:
        loop.add(Request("a", (1, 2), SamplingParams(**fields)))
    assert caught.value.param == param and not loop.has_work


OUT_OF_RANGE: list[tuple[str, Any]] = [
    ("repetition_penalty", 0.0),
    ("repetition_penalty", 2.01),
    ("repetition_penalty", float("nan")),
    ("presence_penalty", -2.1),
    ("presence_penalty", float("inf")),
    ("frequency_penalty", 2.1),
    ("logit_bias", ((3, float("nan")),)),
    ("logit_bias", ((3, float("inf")),)),
    ("logit_bias", ((-1, 1.0),)),
    ("logit_bias", ((3, 1.0), (3, 2.0))),
    ("allowed_token_ids", ()),
    ("allowed_token_ids", (-1,)),
    ("bad_token_ids", (-1,)),
    ("min_new_tokens", -1),
    ("min_new_tokens", 129),
]


@pytest.mark.parametrize(("field", "value"), OUT_OF_RANGE)
def test_fields_out_of_range_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(RequestError, match=field) as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field


def test_allowed_ids_that_are_all_bad_are_refused() -> None:
    with pytest.raises(RequestError, match="allowed_token_ids"):
        SamplingParams(allowed_token_ids=(3, 4), bad_token_ids=(3, 4, 5))


def test_logits_that_overflow_end_their_request_alone() -> None:
    """A penalty next to nothing makes a logit infinite: that is its own request's end, with a reason."""
    loop = tiny_loop(tiny_target(), NGramDrafter())
    healthy = processed_requests(8)[0]
    broken = Request("broken", healthy.prompt_ids, SamplingParams(repetition_penalty=5e-324))
    run(loop, [broken, healthy])
    assert broken.finish is not None and broken.finish.type == "abort" and "finite" in str(broken.finish.message)
    assert healthy.output_ids == references("llama", 8, processed_requests)["p0"].output_ids


def test_entries_name_each_token_once() -> None:
    params = processed_requests(8)[7].params
    history = History(params, (1, 1, 2), (EOS_ID,))
    for token in (5, 5, 90, EOS_ID):
        history.push(token)
    named = history.entries.ids
    assert len(np.unique(named)) == len(named)
