"""Logprobs over HTTP: what of them a client may ask for, and SGLang's shape of the answer.

Knows nothing of models; an entry is [logprob, token id, text or null].
"""

from collections.abc import Sequence
from typing import Any

from echo_sched.errors import RequestError
from echo_sched.types import Logprob, LogprobParams, TokenLogprobs
from server.fields import each
from server.schemas import GenerateBody

# Values that clients send along without asking for logprobs, and that then mean nothing.
NEUTRAL = {"top_logprobs_num": {0}, "logprob_start_len": {-1, 0}}


def logprob_params(body: GenerateBody, num_prompts: int, is_list: bool) -> list[LogprobParams | None]:
    """What each prompt's answers are to tell. Raises RequestError naming the field."""
    asking = each("return_logprob", body.return_logprob, False, num_prompts, is_list)
    tops = each("top_logprobs_num", body.top_logprobs_num, 0, num_prompts, is_list)
    starts = each("logprob_start_len", body.logprob_start_len, -1, num_prompts, is_list)
    if not any(asking):
        for field, values in (("top_logprobs_num", tops), ("logprob_start_len", starts)):
            if not set(values) <= NEUTRAL[field]:
                raise RequestError(f"{field} asks for logprobs, so return_logprob must be true", field)
    return [
        LogprobParams(top, start, bool(body.return_text_in_logprobs)) if asks else None
        for asks, top, start in zip(asking, tops, starts, strict=True)
    ]


def logprob_info(
    params: LogprobParams, prompt: Sequence[TokenLogprobs], output: Sequence[TokenLogprobs]
) -> dict[str, Any]:
    """The entries of `meta_info`, so far. A token without any top logprobs has null in their place."""
    info: dict[str, Any] = {
        "input_token_logprobs": [_entry(item.token) for item in prompt],
        "output_token_logprobs": [_entry(item.token) for item in output],
    }
    if params.top_logprobs_num:
        info["input_top_logprobs"] = [[_entry(top) for top in item.top] or None for item in prompt]
        info["output_top_logprobs"] = [[_entry(top) for top in item.top] or None for item in output]
    return info


def _entry(logprob: Logprob) -> list[Any]:
    return [logprob.value, logprob.token_id, logprob.text]
