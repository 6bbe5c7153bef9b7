"""From a checked body to the engine's requests: prompts into ids, defaults, and checks against the model's limits.

Knows the tokenizer and the model's limits, and nothing of threads or sockets.
"""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from echo_sched.errors import RequestError
from echo_sched.params import choice_seed
from echo_sched.types import Request, SamplingParams
from server.fields import check_ids, check_list
from server.logprobs import logprob_params
from server.reports import ServedModel
from server.sampling import to_params
from server.schemas import GenerateBody, SamplingBody
from server.service import service_params

DEFAULT_MAX_NEW_TOKENS = SamplingParams.max_new_tokens


class _Prompt(NamedTuple):
    field: str  # where the client wrote it, for messages
    content: str | list[int]


def to_requests(body: GenerateBody, model: ServedModel) -> list[Request]:
    """The requests of each prompt, in order, n for each. Raises RequestError naming the field."""
    prompts, is_list = _prompts(body)
    sampling = _sampling(body, len(prompts), is_list)
    rids = _request_ids(body, len(prompts), is_list)
    logprobs = logprob_params(body, len(prompts), is_list)
    services = service_params(body, len(prompts), is_list)
    speculation = body.speculation is not False
    requests: list[Request] = []
    columns = zip(prompts, sampling, rids, logprobs, services, strict=True)
    for prompt, (field, given), rid, wanted, service in columns:
        ids = _token_ids(prompt, model)
        max_new_tokens = _max_new_tokens(prompt.field, len(ids), field, given, model.max_model_len)
        params = to_params(field, given, max_new_tokens, speculation, model.vocab_size)
        _prepare(field, params, model)
        if wanted is not None and wanted.logprob_start_len > len(ids):
            message = f"logprob_start_len is {wanted.logprob_start_len}, but {prompt.field} has {len(ids)} tokens"
            raise RequestError(message, "logprob_start_len")
        alike = partial(Request, prompt_ids=ids, logprobs=wanted, service=service)
        requests += _choices(alike, rid, params, given.n or 1)
    if len({request.request_id for request in requests}) < len(requests):
        raise RequestError("rid names a prompt as another's choice is named", "rid")
    return requests


def _prepare(field: str, params: SamplingParams, model: ServedModel) -> None:
    """Let the engine compile a grammar here, where it holds up nobody's tokens."""
    try:
        model.prepare(params)
    except RequestError as error:
        raise RequestError(f"{field}.{error}", f"{field}.{error.param}") from error


def _choices(make: Callable[..., Request], rid: str, params: SamplingParams, count: int) -> list[Request]:
    """`count` answers to one prompt: each could be had alone, by its own seed."""
    if count == 1:
        return [make(rid, params=params)]
    keyed = [replace(params, seed=choice_seed(params.seed, choice)) for choice in range(count)]
    return [make(f"{rid}-{k}", params=keyed[k], group=rid) for k in range(count)]


def check_size(body: GenerateBody, max_sequences: int) -> None:
    """Refuse a call that could never fit, before its prompts are looked at. Raises RequestError naming the field."""
    prompts, counts = _prompts(body)[0], _counts(body)
    if sum(counts) > max_sequences:
        field = "sampling_params.n" if sum(counts) > len(prompts) else prompts[0].field.partition("[")[0]
        message = f"{len(prompts)} prompts and {sum(counts)} sequences (prompts x n) can never fit"
        raise RequestError(f"{field}: {message}: {max_sequences} may run or wait", field)


def is_batch(body: GenerateBody) -> bool:
    """Whether the client gets a list: it sent a list of prompts, or asked for several answers."""
    return _prompts(body)[1] or sum(_counts(body)) > 1


def _counts(body: GenerateBody) -> list[int]:
    """n of each prompt."""
    prompts, is_list = _prompts(body)
    return [given.n or 1 for _, given in _sampling(body, len(prompts), is_list)]


def _prompts(body: GenerateBody) -> tuple[list[_Prompt], bool]:
    if body.text is not None and body.input_ids is not None:
        raise RequestError("text and input_ids exclude each other; send one of them", "input_ids")
    if body.text is None and body.input_ids is None:
        raise RequestError("the prompt is missing: send text or input_ids", "text")
    if isinstance(body.text, str):
        return [_Prompt("text", body.text)], False
    if body.text is not None:
        if not body.text:
            raise RequestError("text is an empty list", "text")
        return [_Prompt(f"text[{index}]", text) for index, text in enumerate(body.text)], True
    assert body.input_ids is not None
    lists = [row for row in body.input_ids if isinstance(row, list)]
    if lists:
        return [_Prompt(f"input_ids[{index}]", row) for index, row in enumerate(lists)], True
    return [_Prompt("input_ids", [row for row in body.input_ids if isinstance(row, int)])], False


def _sampling(body: GenerateBody, num_prompts: int, is_list: bool) -> list[tuple[str, SamplingBody]]:
    """(where the client wrote it, the fields) for each prompt."""
    given = SamplingBody() if body.sampling_params is None else body.sampling_params
    if isinstance(given, SamplingBody):
        return [("sampling_params", given)] * num_prompts
    check_list("sampling_params", len(given), num_prompts, is_list)
    return [(f"sampling_params[{index}]", params) for index, params in enumerate(given)]


def _request_ids(body: GenerateBody, num_prompts: int, is_list: bool) -> Sequence[str]:
    if body.rid is None:
        return [uuid.uuid4().hex for _ in range(num_prompts)]
    if isinstance(body.rid, str):
        if is_list:
            raise RequestError("rid must be a list, one per prompt, when the prompts are a list", "rid")
        rids = [body.rid]
    else:
        check_list("rid", len(body.rid), num_prompts, is_list)
        rids = body.rid
    if not all(rids) or len(set(rids)) < len(rids):
        raise RequestError("rid must hold distinct ids that are not empty", "rid")
    return rids


def _token_ids(prompt: _Prompt, model: ServedModel) -> tuple[int, ...]:
    if not prompt.content:
        raise RequestError(f"{prompt.field} is empty", prompt.field)
    if isinstance(prompt.content, list):
        check_ids(prompt.field, prompt.content, model.vocab_size)
        return tuple(prompt.content)
    ids = tuple(model.tokenizer(prompt.content)["input_ids"])
    if not ids:
        raise RequestError(f"{prompt.field} has no tokens", prompt.field)
    return ids


def _max_new_tokens(prompt_field: str, prompt_len: int, field: str, params: SamplingBody, max_model_len: int) -> int:
    room = max_model_len - prompt_len
    if params.max_new_tokens is None:
        if room < 1:
            message = f"{prompt_field} has {prompt_len} tokens, which leaves no room in the context of {max_model_len}"
            raise RequestError(message, prompt_field)
        return min(DEFAULT_MAX_NEW_TOKENS, room)
    if params.max_new_tokens > room:
        total = f"{prompt_len} prompt tokens + max_new_tokens {params.max_new_tokens}"
        raise RequestError(f"{total} exceed the context of {max_model_len} tokens", f"{field}.max_new_tokens")
    return params.max_new_tokens
