"""The generator of random requests leaves no sampling field out."""

import random

from echo_sched.types import SamplingParams
from tests.proof.random_requests import random_request

ELSEWHERE = {"json_schema", "regex"}  # they need a tokenizer: test_grammar_loop.py has random requests of its own


def test_every_sampling_field_is_set_now_and_then() -> None:
    """A new field fails here until random requests have it, or a reason why not stands beside it."""
    chance, defaults = random.Random(0), vars(SamplingParams())
    requests = [random_request(chance, "r", max_model_len=60) for _ in range(400)]
    varied = {name for name, default in defaults.items() if any(vars(r.params)[name] != default for r in requests)}
    assert varied == set(defaults) - ELSEWHERE, set(defaults) - varied
    assert any(request.logprobs is not None for request in requests)
    assert {len(request.prompt_ids) + request.params.max_new_tokens == 60 for request in requests} == {True, False}
