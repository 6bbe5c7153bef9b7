"""From the sampling fields of one prompt to the engine's SamplingParams; every message names the field.

Knows the size of the vocabulary, and nothing else of the model.
"""

import json
import secrets
from collections.abc import Mapping
from typing import Any

from echo_sched.errors import RequestError
from echo_sched.params import SEED_BITS, SamplingParams
from server.fields import check_ids
from server.schemas import SamplingBody

PLAIN_FIELDS = {
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_new_tokens",
    "ignore_eos",
    "skip_special_tokens",
    "no_stop_trim",
}
ID_FIELDS = ("stop_token_ids", "allowed_token_ids", "bad_token_ids")


def to_params(
    field: str, given: SamplingBody, max_new_tokens: int, speculation: bool, vocab_size: int
) -> SamplingParams:
    """The params of one prompt, which the client wrote at `field`. Raises RequestError naming the field."""
    values = given.model_dump(include=PLAIN_FIELDS, exclude_none=True)
    if "top_k" in values:
        values["top_k"] = min(values["top_k"], vocab_size)
    for name in ID_FIELDS:
        if (ids := getattr(given, name)) is not None:
            check_ids(f"{field}.{name}", ids, vocab_size)
            values[name] = tuple(ids)
    json_schema = _json_schema(f"{field}.json_schema", given.json_schema)
    logit_bias = _logit_bias(f"{field}.logit_bias", given.logit_bias or {}, vocab_size)
    seed = given.sampling_seed
    stop = [] if given.stop is None else given.stop
    try:
        return SamplingParams(
            max_new_tokens=max_new_tokens,
            seed=secrets.randbits(SEED_BITS) if seed is None else seed,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            logit_bias=logit_bias,
            json_schema=json_schema,
            regex=given.regex or None,
            speculation=speculation,
            **values,
        )
    except RequestError as error:
        raise RequestError(f"{field}.{error}", f"{field}.{error.param}") from error


def _json_schema(field: str, given: str | dict[str, Any] | None) -> str | None:
    """As JSON text: a schema may come as that, or as the object itself."""
    if isinstance(given, dict):
        try:
            return json.dumps(given, allow_nan=False)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{field} is no JSON schema: {error}", field) from error
    return given or None


def _logit_bias(field: str, given: Mapping[str, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    biases = []
    for name, bias in given.items():
        # int() alone would take spaces, underscores and digits of other scripts
        token = int(name) if name.isascii() and name.isdecimal() and len(name) < 20 else -1
        if not 0 <= token < vocab_size:
            message = f"{field} names {name!r}, which is no token id of a vocabulary of {vocab_size}"
            raise RequestError(message, field)
        biases.append((token, bias))
    return tuple(biases)
