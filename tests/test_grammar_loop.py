"""Schemas and regexes under speculation: plain decoding's tokens, and no forbidden node is ever verified."""

import json
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from echo_sched.engine import grammar as grammar_module
from echo_sched.engine.draft.ngram import NGramDrafter
from echo_sched.engine.forward import Target
from echo_sched.engine.grammar import Grammar
from echo_sched.engine.reference import ReferenceResult, reference_decode
from echo_sched.errors import RequestError
from echo_sched.loop import DecodeLoop
from echo_sched.loop import decode as decode_module
from echo_sched.loop.forbidding import DraftFilter
from echo_sched.tree import DraftTree, Offers, Segment
from echo_sched.types import FinishReason, Request, SamplingParams
from tests.byte_text import byte_tokenizer, texts
from tests.fakes import ScriptedDrafter
from tests.languages import RegexLanguage, schema_language
from tests.loops import EOS_ID, processed_requests, references, run, tiny_loop, tiny_target
from tests.test_grammar import SCHEMA, closed
from tests.tiny_models import VOCAB_SIZE, random_prompt, tiny_model

BRACE = texts().index("}")
FLAT = closed({"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "string", "maxLength": 6}}})
LIST = {"type": "array", "items": {"enum": ["ab", "true", "00"]}, "minItems": 2, "maxItems": 5}
KINDS = (
    SamplingParams(max_new_tokens=60, temperature=0.0, json_schema=json.dumps(FLAT)),
    SamplingParams(max_new_tokens=90, seed=31, json_schema=json.dumps(closed(SCHEMA))),
    SamplingParams(max_new_tokens=60, seed=32, temperature=0.7, json_schema=json.dumps(LIST), top_p=0.9),
    SamplingParams(max_new_tokens=12, temperature=0.0, json_schema=json.dumps(closed(SCHEMA))),  # cut off
    SamplingParams(max_new_tokens=40, seed=33, regex="(ab|a|b){3,12}", top_k=3),
    SamplingParams(max_new_tokens=30, seed=34, regex="[a-z]+", ignore_eos=True),  # whole, never complete
    SamplingParams(max_new_tokens=40, seed=35, regex="[0-9]{3}-[0-9]{2}", ignore_eos=True, min_new_tokens=30),
    SamplingParams(max_new_tokens=40, seed=36, regex="[ -~]{10,40}", stop=("b", "z1"), min_p=0.01),
    SamplingParams(max_new_tokens=40, seed=37, regex="(a|b| )+", stop_token_ids=(BRACE,), logit_bias=((BRACE, 3.0),)),
    SamplingParams(
        max_new_tokens=40,
        seed=38,
        regex="[a-f0-9 ]{8,30}",
        repetition_penalty=1.3,
        frequency_penalty=0.5,
        logit_bias=((EOS_ID, 9.0), (texts().index("!"), 50.0)),
        bad_token_ids=(texts().index("a"), texts().index("0")),
        min_new_tokens=12,
    ),
)
COUNT = len(KINDS)


def language_of(params: SamplingParams) -> RegexLanguage:
    if params.regex is not None:
        return RegexLanguage(params.regex)
    return schema_language(json.loads(params.json_schema or ""))


def grammar_requests(seed: int = 0) -> list[Request]:
    lengths = (5, 23, 1, 40, 12, 17, 3, 9)
    return [
        Request(f"g{i}", random_prompt(lengths[i % 8], seed=200 + i), replace(params, seed=params.seed + seed))
        for i, params in enumerate(KINDS)
    ]


def decode(ids: Any) -> str:
    return str(byte_tokenizer().decode(ids, clean_up_tokenization_spaces=False))


@cache
def plain(family: str, seed: int = 0) -> dict[str, ReferenceResult]:
    """What plain decoding emits, with languages by derivatives."""
    model = tiny_model(family)
    return {
        request.request_id: reference_decode(
            model,
            request.prompt_ids,
            request.params,
            (EOS_ID,),
            decode=decode,
            language=language_of(request.params),
        )
        for request in grammar_requests(seed)
    }


def grammar_target(family: str = "llama", **settings: Any) -> Target:
    return tiny_target(family, num_slots=COUNT, tokenizer=byte_tokenizer(), **settings)


def busy_loop(family: str = "llama", seed: int = 0, target: Target | None = None, **settings: Any) -> DecodeLoop:
    """Deep trees with the target's own token in most families, and many forbidden ones."""
    outputs = {name: result.output_ids for name, result in plain(family, seed).items()}
    drafter = ScriptedDrafter(outputs, (0.9,), VOCAB_SIZE)
    return tiny_loop(
        target or grammar_target(family),
        drafter,
        **{"max_depth": 6, "k_max": 60, "max_batch_size": COUNT} | settings,
    )


def assert_plain(loop: DecodeLoop, requests: list[Request], expected: dict[str, ReferenceResult]) -> None:
    texts_of = run(loop, requests)
    for request in requests:
        result = expected[request.request_id]
        assert request.output_ids == result.output_ids, f"{request.request_id}: other tokens"
        assert request.finish == result.finish, f"{request.request_id}: other finish"
        if request.finish == FinishReason("stop") and request.params.json_schema:
            json.loads(texts_of[request.request_id])


@pytest.mark.parametrize("policy", ["off", "static", "dynamic", "echo", "goodput"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_constrained_output_is_plain_decodings_under_every_policy(family: str, policy: str) -> None:
    requests = grammar_requests()
    assert_plain(busy_loop(family, policy=policy), requests, plain(family))
    accepted = sum(request.stats.num_accepted for request in requests)
    assert (accepted == 0) if policy == "off" else (accepted > 30)


@pytest.mark.parametrize("seed", [100, 200])
@pytest.mark.parametrize("settings", [{"max_batch_size": 1}, {"k_max": 3}, {"chunk_tokens": 2}, {"branching": 1}])
def test_nor_do_seeds_batch_budget_and_chunks_change_anything(settings: dict[str, Any], seed: int) -> None:
    assert_plain(busy_loop(seed=seed, **settings), grammar_requests(seed), plain("llama", seed))


def test_neighbours_without_a_grammar_share_every_step() -> None:
    """The neighbours' texts come from another tokenizer, so they have no stop strings."""
    free = [request for request in processed_requests(8) if not request.params.stop]
    loop = tiny_loop(grammar_target(), NGramDrafter(), max_batch_size=8)
    constrained = grammar_requests()
    assert_plain(loop, [*constrained, *free], plain("llama") | references("llama", 8, processed_requests))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_exact_numerics_stay_bitwise(dtype: torch.dtype) -> None:
    target = grammar_target(dtype=dtype, numerics="exact")
    alone = grammar_requests()
    run(tiny_loop(target, NGramDrafter(), policy="off", max_batch_size=1), alone)
    loop = busy_loop(target=target)
    assert isinstance(loop.drafter, ScriptedDrafter)
    loop.drafter.continuations = {request.request_id: request.output_ids for request in alone}
    together = grammar_requests()
    run(loop, together)
    assert [request.output_ids for request in together] == [request.output_ids for request in alone]
    assert sum(request.stats.num_accepted for request in together) > 30


@pytest.mark.parametrize("policy", ["static", "dynamic", "echo"])
def test_no_forbidden_node_is_verified_and_many_were_offered(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: Counter[str] = Counter()
    right = decode_module.tree_segment

    def checked(request: Request, tree: DraftTree) -> Segment:
        language = language_of(request.params)
        ends = request.params.ends_with((EOS_ID,))
        for node, token in enumerate(tree.tokens):
            path = [*request.output_ids, *tree.path(node)]
            assert language.begins(path) or (token in ends and language.holds(path[:-1])), (request.request_id, path)
        counted["verified"] += len(tree)
        counted[f"verified {request.request_id}"] += len(tree)
        return right(request, tree)

    monkeypatch.setattr(decode_module, "tree_segment", checked)
    loop = busy_loop(policy=policy)
    for request in grammar_requests():
        loop.add(request)
    while loop.has_work:
        loop.step()
        record = loop.last_record
        assert record is not None
        assert record.num_offered >= record.num_forbidden + record.num_verified + record.num_dropped
        counted["forbidden"] += record.num_forbidden
    assert counted["forbidden"] > 300 and counted["verified"] > 100, counted
    assert sum(counted[f"verified g{i}"] > 0 for i in range(COUNT)) >= COUNT - 1, counted  # one may stop too soon


def test_the_filter_saves_nodes_and_changes_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    def passing(self: DraftFilter, offers: Offers, trees: Any) -> Offers:
        return offers

    with_filter, without = grammar_requests(), grammar_requests()
    assert_plain(busy_loop(policy="static"), with_filter, plain("llama"))
    monkeypatch.setattr(DraftFilter, "__call__", passing)
    assert_plain(busy_loop(policy="static"), without, plain("llama"))
    verified = [sum(request.stats.num_verified for request in requests) for requests in (with_filter, without)]
    assert verified[0] < 0.8 * verified[1], verified


def test_the_suite_covers_what_it_claims() -> None:
    """Every kind of end, complete grammars inside accepted runs, and deep accepted runs in every request."""
    finishes: Counter[Any] = Counter()
    longest: Counter[str] = Counter()
    completed_inside = 0
    for seed in (0, 100, 200):
        loop = busy_loop(seed=seed, policy="static", branching=1)
        for request in grammar_requests(seed):
            loop.add(request)
        while loop.has_work:
            for event in loop.step():
                longest[event.request.request_id] = max(longest[event.request.request_id], len(event.token_ids) - 1)
                if event.finish is not None:
                    finishes[event.finish.type, event.finish.matched] += 1
                    completed_inside += event.finish == FinishReason("stop") and len(event.token_ids) > 1
    ends = {("stop", None), ("stop", EOS_ID), ("stop", BRACE), ("length", None)}
    assert ends <= set(finishes) and any(isinstance(matched, str) for _, matched in finishes), finishes
    assert completed_inside and min(longest.values()) >= 2, longest


def late(self: Grammar, token: int) -> None:
    """Planted: the path does not count."""


def test_a_place_that_ignores_the_path_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Grammar, "push", late)
    with pytest.raises(AssertionError, match=r"g\d: other"):
        assert_plain(busy_loop(), grammar_requests(), plain("llama"))


def test_ends_that_are_allowed_everywhere_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Grammar, "_whole", property(lambda _: True))
    with pytest.raises(AssertionError, match=r"g\d: other"):
        assert_plain(busy_loop(), grammar_requests(), plain("llama"))


# ---- ends ----


def one(**fields: Any) -> Request:
    request = Request("one", random_prompt(5), SamplingParams(**{"temperature": 0.0, "max_new_tokens": 30} | fields))
    run(tiny_loop(grammar_target(), NGramDrafter()), [request])
    return request


def test_a_complete_grammar_ends_the_request_whatever_would_put_that_off() -> None:
    for fields in ({}, {"ignore_eos": True}, {"min_new_tokens": 30}):
        request = one(regex="true12", **fields)
        assert decode(request.output_ids) == "true12"
        assert request.finish == FinishReason("stop")
    last = one(regex="true12", max_new_tokens=len(request.output_ids))
    assert last.finish == FinishReason("stop"), "complete with its last token"


def test_what_is_cut_off_says_length() -> None:
    request = one(json_schema=json.dumps(closed(SCHEMA)), max_new_tokens=4)
    assert request.finish == FinishReason("length") and len(request.output_ids) == 4
    assert schema_language(closed(SCHEMA)).begins(request.output_ids)


def test_ends_wait_for_the_grammar_and_for_min_new_tokens() -> None:
    eager = {"logit_bias": ((EOS_ID, 1e6),)}
    assert [len(one(regex=f"a{{{n},}}", bad_token_ids=(), **eager).output_ids) for n in (1, 4)] == [2, 5]
    assert len(one(regex="[ac-z]+", bad_token_ids=(), min_new_tokens=7, **eager).output_ids) == 8
    ignored = one(regex="a+", ignore_eos=True, **eager)
    assert EOS_ID not in ignored.output_ids and ignored.finish == FinishReason("length")


# ---- what goes wrong ----


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"regex": "a\u00e9"}, "no token of this vocabulary continues the grammar"),
        ({"regex": "ab", "bad_token_ids": (texts().index("ab"), texts().index("b"))}, "other fields rule out"),
    ],
)
def test_a_dead_end_ends_its_request_alone(fields: dict[str, Any], reason: str) -> None:
    loop = busy_loop()
    assert isinstance(loop.drafter, ScriptedDrafter)
    loop.drafter.continuations = {**loop.drafter.continuations, "dead": ()}
    healthy, dead = grammar_requests()[0], Request("dead", (1, 2), SamplingParams(**fields))
    run(loop, [dead, healthy])
    assert dead.finish is not None and dead.finish.type == "abort" and reason in str(dead.finish.message)
    assert healthy.output_ids == plain("llama")["g0"].output_ids


def test_a_grammar_that_grows_too_complex_ends_its_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_module, "LIMITS", grammar_module.LLParserLimits(max_lexer_states=60))
    loop = tiny_loop(grammar_target(), NGramDrafter())
    complex_one = Request("x", (1, 2), SamplingParams(seed=1, regex="(a|b)*a(a|b){12}x"))
    healthy = Request("y", (1, 2), SamplingParams(seed=1, regex="(a|b){9}"))
    run(loop, [complex_one, healthy])
    assert complex_one.finish is not None and complex_one.finish.type == "abort"
    assert "too complex" in str(complex_one.finish.message)
    assert healthy.finish == FinishReason("stop")


def test_a_bad_schema_is_refused_before_it_is_queued() -> None:
    loop = tiny_loop(grammar_target(), NGramDrafter())
    with pytest.raises(RequestError, match="json_schema cannot be used") as caught:
        loop.add(Request("a", (1, 2), SamplingParams(json_schema='{"type": "foo"}')))
    assert caught.value.param == "json_schema" and not loop.has_work
    loop.check_integrity()
