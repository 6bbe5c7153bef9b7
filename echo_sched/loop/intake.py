"""Whether a request can be served at all, before it is queued."""

from collections.abc import Set

from echo_sched.errors import RequestError
from echo_sched.types import Request, SamplingParams


def check_request(request: Request, vocab_size: int, max_model_len: int, eos_ids: Set[int]) -> None:
    """Raises RequestError, naming the field."""
    prompt, params = request.prompt_ids, request.params
    if not prompt:
        raise RequestError("the prompt is empty", "input_ids")
    if not all(0 <= token < vocab_size for token in prompt):
        raise RequestError(f"token ids must be in [0, {vocab_size})", "input_ids")
    if len(prompt) + params.max_new_tokens > max_model_len:
        raise RequestError(
            f"prompt ({len(prompt)} tokens) + max_new_tokens ({params.max_new_tokens}) exceed the context of "
            f"{max_model_len} tokens",
            "max_new_tokens",
        )
    if request.logprobs is not None and request.logprobs.logprob_start_len > len(prompt):
        raise RequestError(
            f"logprob_start_len ({request.logprobs.logprob_start_len}) is behind the prompt ({len(prompt)} tokens)",
            "logprob_start_len",
        )
    _check_vocabulary(params, vocab_size)
    _check_choice(params, vocab_size, eos_ids)


def _check_vocabulary(params: SamplingParams, vocab_size: int) -> None:
    named = {
        "stop_token_ids": params.stop_token_ids,
        "logit_bias": [token for token, _ in params.logit_bias],
        "allowed_token_ids": params.allowed_token_ids or (),
        "bad_token_ids": params.bad_token_ids,
    }
    for field, ids in named.items():
        if any(token >= vocab_size for token in ids):
            raise RequestError(f"{field} must name ids in [0, {vocab_size})", field)


def _check_choice(params: SamplingParams, vocab_size: int, eos_ids: Set[int]) -> None:
    """Some token can be drawn at every position, whatever came before."""
    bad = set(params.bad_token_ids)
    if not _num_left(params, vocab_size, bad):
        raise RequestError("bad_token_ids leave no token to draw", "bad_token_ids")
    if params.min_new_tokens and not _num_left(params, vocab_size, bad | params.ends_with(eos_ids)):
        raise RequestError(
            "min_new_tokens leaves no token to draw: all that are allowed would end the request", "min_new_tokens"
        )


def _num_left(params: SamplingParams, vocab_size: int, ruled_out: Set[int]) -> int:
    if params.allowed_token_ids is None:
        return vocab_size - len(ruled_out)
    return len(set(params.allowed_token_ids) - ruled_out)
