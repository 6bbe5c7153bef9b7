"""The library's limits: copies of a grammar share what counts towards them, yet no output ends by others' work."""

import random
from collections.abc import Iterator

import pytest

from echo_sched.engine import grammar as grammar_module
from echo_sched.engine.grammar import Grammar, Grammars, Scout
from echo_sched.types import FinishReason, Request, SamplingParams
from tests.byte_text import texts
from tests.fakes import ScriptedDrafter
from tests.loops import run, tiny_loop
from tests.test_grammar import begin, tiny_grammars
from tests.test_grammar_loop import grammar_target
from tests.tiny_models import VOCAB_SIZE, random_prompt

A, B = texts().index("a"), texts().index("b")
REGEX = (
    "(a|b)*a(a|b){12}x"  # remembers the last 13 letters, so that every mixture of them is a state; b alone makes few
)
CALM = [B] * 12


@pytest.fixture(autouse=True)
def few_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_module, "LIMITS", grammar_module.LLParserLimits(max_lexer_states=24))


def mixtures() -> Iterator[list[int]]:
    numbers = random.Random(0)
    while True:
        yield [numbers.choice((A, B)) for _ in range(20)]


def look_until_spent(scout: Scout) -> None:
    """Far enough to reach the limit."""
    for _, path in zip(range(200), mixtures(), strict=False):
        if scout.allows(path, [A]) == [False]:
            return
    raise AssertionError("the limit was not reached")


def write_until_spent(place: Grammar) -> None:
    for token in next(mixtures()):
        place.push(token)
        if not place.allowed.any():
            break
    assert place.error is not None and "too many states" in place.error


def assert_alone(place: Grammar, output: list[int], spent_at: int | None = None) -> None:
    """Its masks along `output` are those of a grammar that nobody uses, whenever looking ahead reaches the limit."""
    alone = begin(tiny_grammars(), regex=REGEX)
    for end, token in enumerate([*output, None]):
        if end == spent_at:
            look_until_spent(place.scout())
        assert (place.allowed == alone.allowed).all()
        assert place.complete == alone.complete and place.error is None and alone.error is None
        if token is not None:
            assert alone.allowed[token]
            place.push(token)
            alone.push(token)


def test_what_looking_ahead_uses_up_is_not_missed_by_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_module, "LIMITS", grammar_module.LLParserLimits(max_lexer_states=100))
    output = [B, B, B, A, *[B] * 12, texts().index("x")]  # all of a text
    for moment in range(len(output) + 1):
        assert_alone(begin(tiny_grammars(), regex=REGEX), output, moment)


def test_nothing_looks_ahead_once_the_limit_was_reached() -> None:
    place = begin(regex=REGEX)
    look_until_spent(place.scout())
    place.push(B)
    assert place.allowed[B] and place.error is None
    assert place.scout().allows((), [A, B]) == [False, False], "it would use up again what the output needs"


def test_nor_is_what_others_use_up() -> None:
    grammars = tiny_grammars()
    running = begin(grammars, regex=REGEX)
    write_until_spent(begin(grammars, regex=REGEX))
    assert_alone(running, CALM)
    assert_alone(begin(grammars, regex=REGEX), CALM)


def test_a_place_that_alone_comes_to_the_limit_ends_there_whatever_went_before() -> None:
    output = next(mixtures())

    def end_of(grammars: Grammars) -> int:
        place = begin(grammars, regex=REGEX)
        for end, token in enumerate(output):
            if not place.allowed.any():
                assert place.error is not None and "too many states" in place.error
                return end
            place.push(token)
        raise AssertionError("the limit was not reached")

    spent = tiny_grammars()
    look_until_spent(begin(spent, regex=REGEX).scout())
    assert end_of(spent) == end_of(tiny_grammars()) > 0


class MixturesDrafter(ScriptedDrafter):
    """Offers a and b everywhere, a first."""

    def _children(self, request: Request, path: list[int], count: int) -> list[tuple[int, float]]:
        return [(A, -0.5), (B, -0.9)][:count]


@pytest.mark.parametrize("policy", ["off", "static", "dynamic", "echo"])
def test_drafts_do_not_end_a_request_that_plain_decoding_finishes(policy: str) -> None:
    """The model is made to write b alone."""
    params = SamplingParams(temperature=0.0, regex=REGEX, logit_bias=((B, 1000.0),), max_new_tokens=24)
    requests = [Request(f"b{i}", random_prompt(5 + i, seed=i), params) for i in range(3)]
    drafter = MixturesDrafter({}, (1.0,), VOCAB_SIZE)
    loop = tiny_loop(grammar_target(), drafter, policy=policy, branching=2, max_depth=12, k_max=90)
    run(loop, requests)
    assert [(r.finish, r.output_ids) for r in requests] == [(FinishReason("length"), [B] * 24)] * 3
