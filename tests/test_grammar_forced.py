"""Where a grammar leaves one way to go on: looking ahead allows what the mask allows, and no other cut of the text."""

import json
import random
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from echo_sched.engine.grammar import Grammar, Grammars, Scout
from echo_sched.errors import RequestError
from echo_sched.types import SamplingParams
from tests.byte_text import PRIVATE, every_byte_tokenizer

WORDS = ("true12", "true", "false", "12", "ab", "aba", "bb", "nam", "name", "t", " ", "<end>", "<private>")
CHARACTERS = ("\u00e9", "\u00e8", "caf\u00e9", "\u6771\u4eac\u90fd", "\u6771\u4eac", "\U0001f600", "\U0001f601")
PIECES = st.sampled_from(WORDS + CHARACTERS)
FORCED_REGEXES = ("true12", "(true|false)12", "(\u00e9|\u00e8)12", "\u6771(\u4eac|\u897f)\u90fd", "(aba|abb)?true")


def composed(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join).map("({})".format),
        inner.map("({})?".format),
        inner.map("({}){{1,3}}".format),
    )


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Objects of which some keys are required, and arrays."""
    objects = st.dictionaries(PIECES, inner, min_size=1, max_size=3).flatmap(
        lambda parts: st.lists(st.sampled_from(sorted(parts)), unique=True).map(
            lambda required: {
                "type": "object",
                "properties": parts,
                "required": required,
                "additionalProperties": False,
            }
        )
    )
    return objects | inner.map(lambda item: {"type": "array", "items": item, "minItems": 1, "maxItems": 2})


REGEXES = st.sampled_from(FORCED_REGEXES) | st.recursive(PIECES, composed, max_leaves=5)
VALUES = st.one_of(
    PIECES.map(lambda word: {"const": word}),
    st.lists(PIECES, min_size=1, max_size=3, unique=True).map(lambda words: {"enum": words}),
    st.sampled_from([{"const": 12}, {"type": "boolean"}, {"type": "null"}, {"type": "string", "maxLength": 3}]),
)
SCHEMAS = st.recursive(VALUES, nested, max_leaves=4)
PACKED = {"x-guidance": {"whitespace_flexible": False}}  # forced text runs across JSON's tokens
FIELDS = st.one_of(
    REGEXES.map(lambda regex: {"regex": regex}),
    st.tuples(SCHEMAS, st.sampled_from([{}, PACKED])).map(lambda two: {"json_schema": json.dumps(two[0] | two[1])}),
)
ENDS = st.lists(st.sampled_from(["t", "12", "}", '"', "true", PRIVATE]), max_size=2, unique=True)


@cache
def wide_grammars() -> Grammars:
    tokenizer = every_byte_tokenizer()
    return Grammars(tokenizer, len(tokenizer) + 3, (tokenizer.eos_token_id,))


def place_at(params: SamplingParams, output: list[int]) -> Grammar:
    """As the accept walk comes there: with a mask at every place."""
    place = wide_grammars().begin(params)
    assert place is not None
    for token in output:
        assert place.allowed[token]
        place.push(token)
    return place


def allowed_at(place: Grammar) -> list[bool]:
    """What plain decoding may emit there: nothing where the request has ended."""
    return (place.allowed & (not place.complete)).tolist()


def next_token(params: SamplingParams, allowed: list[bool], numbers: random.Random) -> int | None:
    """A random one that does not end the request, most of the time."""
    tokens = [token for token in np.flatnonzero(allowed).tolist() if token not in params.ends_with((0,))]
    return numbers.choice(tokens) if tokens and numbers.random() < 0.85 else None


def look_around(params: SamplingParams, seed: int, counted: Counter[str]) -> None:
    """Compare one scout's answers, for every token, with the masks along random paths from a random place."""
    numbers, output = random.Random(seed), list[int]()
    while len(output) < 6 and (token := next_token(params, allowed_at(place_at(params, output)), numbers)) is not None:
        output.append(token)
    scout = place_at(params, output).scout()
    for _ in range(5):
        path: list[int] = []
        while len(path) < 9:
            place = place_at(params, [*output, *path])
            allowed = allowed_at(place)
            assert scout.allows(path, range(len(allowed))) == allowed, (params.grammar, output, path)
            only = allowed.index(True) if sum(allowed) == 1 else None
            counted["places"] += 1
            counted["complete"] += place.complete
            counted["ends"] += any(allowed[token] for token in params.ends_with((0,)))
            counted["one token"] += only is not None
            counted["one token, of several bytes"] += only is not None and len(decoded(only)) > 1
            counted["one token, no whole character"] += only is not None and "\ufffd" in decoded(only)
            if (token := next_token(params, allowed, numbers)) is None:
                break
            path.append(token)


def decoded(token: int) -> str:
    return str(every_byte_tokenizer().decode([token]))


def test_looking_ahead_says_what_the_mask_says_for_every_token() -> None:
    counted: Counter[str] = Counter()

    @settings(max_examples=150, derandomize=True)
    @given(FIELDS, ENDS, st.booleans(), st.integers(0, 2**32))
    def says_the_same(fields: dict[str, str], ends: list[str], ignore_eos: bool, seed: int) -> None:
        ids = tuple(every_byte_tokenizer().convert_tokens_to_ids(ends))
        params = SamplingParams(**fields, stop_token_ids=ids, ignore_eos=ignore_eos)  # type: ignore[arg-type]
        try:
            wide_grammars().prepare(params)
        except RequestError:  # it begins with the name of a special token, which the library takes for that token
            reject()
        look_around(params, seed, counted)

    says_the_same()
    assert counted["places"] > 1500 and counted["one token"] > 500, counted
    assert min(counted["complete"], counted["ends"], counted["one token, of several bytes"]) > 50, counted
    assert counted["one token, no whole character"] > 10, counted


@pytest.mark.parametrize("regex", FORCED_REGEXES)
def test_looking_ahead_along_known_forced_texts(regex: str) -> None:
    counted: Counter[str] = Counter()
    for seed in range(20):
        look_around(SamplingParams(regex=regex), seed, counted)
    assert counted["one token"] > 10


def test_looking_ahead_that_takes_any_cut_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scout, "_forced", property(lambda _: None))
    with pytest.raises(AssertionError, match="true12"):
        look_around(SamplingParams(regex="true12"), 2, Counter())  # a seed that looks from the start
