"""Whether a request can be served at all, before it is queued."""

from echo_sched.errors import RequestError
from echo_sched.types import Request


def check_request(request: Request, vocab_size: int, max_model_len: int) -> None:
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
