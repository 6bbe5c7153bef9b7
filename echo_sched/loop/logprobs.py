"""Logprobs of a step's tokens, for the requests that asked: of prompt chunks and of what was drawn, all in one pass."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from echo_sched.engine.accept import Walk
from echo_sched.engine.logprobs import RowLogprobs, row_logprobs
from echo_sched.loop.emission import Output
from echo_sched.loop.rows import Chunk
from echo_sched.types import Logprob, LogprobParams, Request, TokenLogprobs

Decode = Callable[[Sequence[int]], str]


class _Asked(NamedTuple):
    """One token whose logprob is wanted: the row of logits it is judged by, and the list it goes to."""

    row: int
    token: int
    params: LogprobParams
    goes_to: list[TokenLogprobs]


def add_logprobs(
    walks: Sequence[tuple[Request, Walk]],
    emitted: Sequence[Sequence[int]],
    accepted: Sequence[Sequence[int]],
    chunks: Sequence[tuple[Chunk, int]],
    logits: Tensor,
    outputs: Mapping[str, Output],
    decode: Decode,
) -> None:
    """Append to the outputs of requests that asked, before anything is committed.

    Every chunk comes with its first row of logits [R, V]; `decode` turns ids into text, special tokens included.
    """
    asked = [item for chunk, first_row in chunks for item in _of_chunk(chunk, first_row, outputs)]
    for (request, walk), tokens, nodes in zip(walks, emitted, accepted, strict=True):
        if request.logprobs is not None:
            drawn_from = [walk.first_row, *(walk.first_row + 1 + node for node in nodes)]
            goes_to = outputs[request.request_id].logprobs
            # Nothing follows an end, so the last accepted node may have drawn no token.
            pairs = zip(drawn_from, tokens, strict=False)
            asked += [_Asked(row, token, request.logprobs, goes_to) for row, token in pairs]
    if not asked:
        return
    rows = torch.tensor([item.row for item in asked], device=logits.device)
    tops = [item.params.top_logprobs_num for item in asked]
    found = row_logprobs(logits[rows], [item.token for item in asked], tops)
    for item, logprobs in zip(asked, found, strict=True):
        item.goes_to.append(_token_logprobs(item, logprobs, decode))


def _of_chunk(chunk: Chunk, first_row: int, outputs: Mapping[str, Output]) -> list[_Asked]:
    """A prompt's row says how likely its next token is; the last one's next token is no longer the prompt's."""
    request, params = chunk.request, chunk.request.logprobs
    if params is None:
        return []
    first = request.num_computed + chunk.size - chunk.num_logit_rows  # prompt index of the first row
    following = request.prompt_ids[first + 1 : request.num_computed + chunk.size + 1]
    goes_to = outputs[request.request_id].prompt_logprobs
    return [_Asked(first_row + place, token, params, goes_to) for place, token in enumerate(following)]


def first_prompt_logprobs(request: Request, decode: Decode) -> list[TokenLogprobs]:
    """What is said of the first prompt token asked for, if any: it stands alone, without a number (as in SGLang)."""
    params = request.logprobs
    if params is None or not 0 <= params.logprob_start_len < len(request.prompt_ids):
        return []
    token = request.prompt_ids[params.logprob_start_len]
    return [TokenLogprobs(_logprob(None, token, params, decode), ())]


def _token_logprobs(item: _Asked, found: RowLogprobs, decode: Decode) -> TokenLogprobs:
    top = tuple(_logprob(value, token, item.params, decode) for token, value in found.top)
    return TokenLogprobs(_logprob(found.value, item.token, item.params, decode), top)


def _logprob(value: float | None, token: int, params: LogprobParams, decode: Decode) -> Logprob:
    is_number = value is not None and not math.isnan(value)
    return Logprob(value if is_number else None, token, decode([token]) if params.return_text else None)
