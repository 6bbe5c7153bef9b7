"""Gives one request one more token, and says whether that ends it: EOS, a stop id, a stop string, or the token limit.

Checked token by token on the accepted path, so nothing after a stop is emitted or counted. Knows no tree and no model.
"""

from collections.abc import Set

from echo_sched.text import TextStream
from echo_sched.types import FinishReason, Request


def is_stop_id(request: Request, token: int, eos_ids: Set[int]) -> bool:
    """EOS (unless ignored) and the request's own stop ids end it; as draft nodes they are leaves."""
    return (token in eos_ids and not request.params.ignore_eos) or token in request.params.stop_token_ids


def emit_token(request: Request, token: int, text: TextStream, eos_ids: Set[int]) -> FinishReason | None:
    """Append the token to the request's output and text. A stop id is output, but not text unless `no_stop_trim`."""
    request.output_ids.append(token)
    stopped = is_stop_id(request, token, eos_ids)
    matched = text.push(token) if not stopped or request.params.no_stop_trim else None
    if stopped:
        request.finish = FinishReason("stop", token)
    elif matched is not None:
        request.finish = FinishReason("stop", matched)
    elif request.num_remaining == 0:
        request.finish = FinishReason("length")
    return request.finish
