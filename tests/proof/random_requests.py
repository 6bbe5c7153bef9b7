"""Random requests: every sampling field, alone and with others, from one generator of random numbers."""

import random
import string
from collections.abc import Callable, Sequence
from typing import Any

from echo_sched.params import MAX_SEED, choice_seed
from echo_sched.types import LogprobParams, Request, SamplingParams
from tests.tiny_models import VOCAB_SIZE

# At least this many ids are allowed where ids are: more than can be bad (10), stop ids (12) or EOS together, so that
# some token can always be drawn.
MIN_ALLOWED = 25
FIELD_CHANCE = 0.25  # that a field is not at its default
Field = Callable[[random.Random, int], Any]  # (random numbers, vocabulary size) -> a value that is not the default


def _some(chance: random.Random, vocab_size: int, low: int, high: int) -> tuple[int, ...]:
    return tuple(chance.sample(range(vocab_size), chance.randint(low, min(high, vocab_size))))


FIELDS: dict[str, Field] = {
    "top_k": lambda chance, _: chance.choice(
        (1, 3, 20, 70, 400)
    ),  # below and above the race's head, and the vocabulary
    "top_p": lambda chance, _: chance.choice((0.3, 0.8, 0.95)),
    "min_p": lambda chance, _: chance.choice((0.01, 0.1, 1.0)),
    "stop_token_ids": lambda chance, size: _some(chance, size, 1, 12),
    "ignore_eos": lambda chance, _: True,
    "no_stop_trim": lambda chance, _: True,
    "skip_special_tokens": lambda chance, _: False,
    "repetition_penalty": lambda chance, _: chance.uniform(0.6, 1.7),
    "presence_penalty": lambda chance, _: chance.uniform(-2.0, 2.0),
    "frequency_penalty": lambda chance, _: chance.uniform(-2.0, 2.0),
    "logit_bias": lambda chance, size: tuple((token, chance.uniform(-5, 5)) for token in _some(chance, size, 1, 20)),
    "allowed_token_ids": lambda chance, size: _some(chance, size, MIN_ALLOWED, 90),
    "bad_token_ids": lambda chance, size: _some(chance, size, 1, 10),
}


def random_params(
    chance: random.Random,
    max_new_tokens: int,
    *,
    vocab_size: int = VOCAB_SIZE,
    letters: str = string.ascii_lowercase[:10],
    speculated: float = 0.9,
) -> SamplingParams:
    """Sampling fields for an output of at most `max_new_tokens`; stop strings are made of `letters`."""
    fields = {name: make(chance, vocab_size) for name, make in FIELDS.items() if chance.random() < FIELD_CHANCE}
    if chance.random() < FIELD_CHANCE:
        fields["stop"] = tuple("".join(chance.choices(letters, k=chance.randint(1, 3))) for _ in range(2))
    if chance.random() < FIELD_CHANCE:
        fields["min_new_tokens"] = chance.randint(1, max_new_tokens)
    return SamplingParams(
        max_new_tokens=max_new_tokens,
        temperature=chance.choice((0.0, 0.0, 0.3, 0.8, 1.0, 1.4)),
        seed=chance.randint(0, MAX_SEED),
        speculation=chance.random() < speculated,
        **fields,
    )


def random_request(
    chance: random.Random, name: str, *, max_model_len: int, max_new_tokens: int = 24, vocab_size: int = VOCAB_SIZE
) -> Request:
    """A request with a short prompt, some of it said before; one in eight fills the context to the last token."""
    num_new = chance.choice((1, *range(1, max_new_tokens + 1)))
    length = max_model_len - num_new if chance.random() < 1 / 8 else chance.randint(1, 30)
    unit = [chance.randrange(vocab_size) for _ in range(chance.randint(1, length))]
    prompt_ids = tuple((unit * length)[:length])
    params = random_params(chance, num_new, vocab_size=vocab_size)
    return Request(name, prompt_ids, params, logprobs=random_logprobs(chance, length))


def random_logprobs(chance: random.Random, prompt_len: int) -> LogprobParams | None:
    if chance.random() < 0.8:
        return None
    return LogprobParams(chance.randint(0, 5), chance.choice((-1, 0, prompt_len)), chance.random() < 0.5)


def siblings(first: Request, names: Sequence[str]) -> list[Request]:
    """Further answers to the same prompt, as the server asks for them: choice k with its derived seed."""
    first.group = first.request_id
    return [
        Request(
            name,
            first.prompt_ids,
            SamplingParams(**vars(first.params) | {"seed": choice_seed(first.params.seed, choice)}),
            group=first.group,
            logprobs=first.logprobs,
        )
        for choice, name in enumerate(names, start=1)
    ]
