"""Places in grammars: the tokens they allow are those of derivatives taken character by character, and nothing else."""

import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from echo_sched.engine import grammar as grammar_module
from echo_sched.engine.choice import Language, continuations
from echo_sched.engine.grammar import Grammar, Grammars
from echo_sched.errors import RequestError
from echo_sched.params import MAX_GRAMMAR_LEN
from echo_sched.types import SamplingParams
from tests.byte_text import PRIVATE, byte_tokenizer, texts
from tests.languages import RegexLanguage, schema_language
from tests.loops import EOS_ID, TinyTokenizer
from tests.tiny_models import VOCAB_SIZE

STOP_ID = texts().index("}")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "list": {"type": "array", "items": {"enum": ["red", "blue-ish"]}, "minItems": 1, "maxItems": 3},
        "s": {"type": "string", "maxLength": 5},
        "o": {"type": "object", "properties": {"x": {"type": "boolean"}}},
    },
}
REGEXES = (
    *("(ab|a|b){3,12}", "[a-z]+", "[0-9]{4}-[0-9]{2}(T[0-9]+)?", "a*", "(a|b)*abb", "x|", "a\\/b\n[ -~]?"),
    *("true12", "(true|false)12", "(abab|bb)12(ab)?", "fals(e|y)12"),  # forced text that could be cut otherwise
)


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """With every property required and no others allowed."""
    parts = {name: closed(part) for name, part in schema.get("properties", {}).items()}
    rules = {"properties": parts, "required": list(parts), "additionalProperties": False}
    return schema | rules if parts else schema


def tiny_grammars(eos_ids: Sequence[int] = (EOS_ID,)) -> Grammars:
    return Grammars(byte_tokenizer(), VOCAB_SIZE, eos_ids)


def begin(grammars: Grammars | None = None, **fields: Any) -> Grammar:
    place = (grammars or tiny_grammars()).begin(SamplingParams(**fields))
    assert place is not None
    return place


def walk(place: Grammar, language: Language, ends: set[int], seed: int, length: int = 40) -> list[int]:
    """Random allowed tokens, compared at each place with the language, by masks and by looking ahead."""
    numbers, output = random.Random(seed), list[int]()
    for _ in range(length):
        fitting, whole = continuations(language, output, VOCAB_SIZE), language.holds(output)
        expected = fitting | (ends if whole else set())
        assert set(np.flatnonzero(place.allowed).tolist()) == expected, output
        assert place.complete == (whole and not fitting)
        looked = place.scout().allows((), range(VOCAB_SIZE))
        assert [token for token in range(VOCAB_SIZE) if looked[token]] == (sorted(expected) if fitting else [])
        if not fitting - ends:
            break
        token = numbers.choice(sorted(fitting - ends))
        place.push(token)
        output.append(token)
    return output


@pytest.mark.parametrize("regex", REGEXES)
def test_a_regex_allows_what_derivatives_allow(regex: str) -> None:
    grammars = tiny_grammars()
    lengths = [len(walk(begin(grammars, regex=regex), RegexLanguage(regex), {EOS_ID}, seed)) for seed in range(4)]
    assert min(lengths) > 0


def test_a_schema_allows_what_derivatives_of_its_regex_allow() -> None:
    schema, grammars = closed(SCHEMA), tiny_grammars()
    language, whole = schema_language(schema), 0
    for seed in range(12):
        output = walk(begin(grammars, json_schema=json.dumps(schema)), language, {EOS_ID}, seed, 80)
        whole += language.holds(output)
    assert whole >= 3


def test_what_ends_the_request_is_allowed_where_the_text_is_whole() -> None:
    fields = {"regex": "a+}?", "stop_token_ids": (STOP_ID,)}
    language = RegexLanguage("a+}?")
    for seed in range(3):
        walk(begin(**fields), language, {EOS_ID, STOP_ID}, seed, 6)
        walk(begin(**fields, ignore_eos=True), language, {STOP_ID}, seed, 6)
    ignored = begin(regex="a+", ignore_eos=True)
    ignored.push(texts().index("a"))
    assert not ignored.allowed[EOS_ID] and ignored.scout().allows((), [EOS_ID]) == [False]
    private = byte_tokenizer().convert_tokens_to_ids(PRIVATE)
    assert not begin(regex="[ -~]+").allowed[private], "a special token has no text"


def test_a_scout_follows_paths_and_comes_back() -> None:
    place = begin(regex="ab(c|d)")
    a, ab, b, c = (texts().index(text) for text in ("a", "ab", "b", "c"))
    scout = place.scout()
    assert scout.allows((a,), [a, ab, b, EOS_ID]) == [False, False, True, False]
    assert scout.allows((ab,), [b, c]) == [False, True]
    assert scout.allows((a, b), [a, c]) == [False, True]
    assert scout.allows((ab, c), [c, EOS_ID]) == [False, False], "the request ends with c"
    assert scout.allows((c,), [c]) == [False], "no path of this grammar"
    place.push(ab)
    assert place.scout().allows((), [b, c]) == [False, True]


def test_a_grammar_is_compiled_once_and_places_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    right = grammar_module._grammar_text
    monkeypatch.setattr(grammar_module, "_grammar_text", lambda source: (compiled.append(source), right(source))[1])
    grammars = tiny_grammars()
    grammars.prepare(SamplingParams(regex="ab+"))
    first, second = begin(grammars, regex="ab+"), begin(grammars, regex="ab+", seed=5)
    first.push(texts().index("ab"))
    assert (first.allowed != second.allowed).any()
    assert len(compiled) == 1
    grammars.prepare(SamplingParams())
    assert grammars.begin(SamplingParams(temperature=0.0)) is None


BAD: list[tuple[str, str, str]] = [
    ("regex", "(", "unclosed group"),
    ("regex", "(?=a)b", "look-around"),
    ("regex", r"(a)\1", "backreferences"),
    ("regex", "\u00e9", "no token of this vocabulary can begin"),
    ("regex", "a\ud800", "surrogates"),
    ("json_schema", "{", "EOF"),
    ("json_schema", "[1]", "object"),
    ("json_schema", '{"type": "foo"}', "Invalid type: foo"),
    ("json_schema", '{"not": {}}', "Unimplemented keys"),
    ("json_schema", '{"not": {}, "x-guidance": {"lenient": true}}', "Unimplemented keys"),
    ("json_schema", '{"type": "string", "pattern": "("}', "unclosed group"),
    ("json_schema", '{"enum": []}', "Unsatisfiable"),
    ("json_schema", '{"$ref": "#"}', "no token of this vocabulary can begin"),
    ("json_schema", '{"$ref": "http://example.com/schema"}', "not present"),
    ("json_schema", '{"items":' * 200 + "{}" + "}" * 200, "recursion"),
]


@pytest.mark.parametrize(("field", "source", "reason"), BAD)
def test_what_cannot_be_honoured_is_refused_by_name(field: str, source: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as caught:
        tiny_grammars().prepare(SamplingParams(**{field: source}))  # type: ignore[arg-type]
    assert caught.value.param == field and str(caught.value).startswith(field)
    assert "\n" not in str(caught.value)


def test_params_take_one_grammar_of_a_certain_length() -> None:
    with pytest.raises(RequestError, match="excludes") as both:
        SamplingParams(json_schema="{}", regex="a")
    assert both.value.param == "regex"
    for field in ("json_schema", "regex"):
        SamplingParams(**{field: "a" * MAX_GRAMMAR_LEN})  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="at most 65536 characters") as long:
            SamplingParams(**{field: "a" * (MAX_GRAMMAR_LEN + 1)})  # type: ignore[arg-type]
        assert long.value.param == field


def test_a_tokenizer_that_hides_its_bytes_is_refused() -> None:
    with pytest.raises(RequestError, match="regex cannot be honoured: this model's tokenizer") as caught:
        Grammars(TinyTokenizer(), VOCAB_SIZE, (EOS_ID,)).prepare(SamplingParams(regex="a"))
    assert caught.value.param == "regex"


def test_a_model_without_an_end_still_has_grammars() -> None:
    language = RegexLanguage("(a|b){2,3}")
    for seed in range(3):
        walk(begin(tiny_grammars(()), regex="(a|b){2,3}"), language, set(), seed)


def test_a_grammar_that_grows_too_complex_allows_nothing_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_module, "LIMITS", grammar_module.LLParserLimits(max_lexer_states=60))
    place = begin(regex="(a|b)*a(a|b){12}x")
    for token in range(12):
        place.push(texts().index("ab"[token % 3 % 2]))
        if not place.allowed.any():
            break
    assert place.error is not None and "\n" not in place.error
    assert not place.complete and place.scout().allows((), [EOS_ID, 5]) == [False, False]
