"""What clients may send, as pydantic models, and which known fields are refused by name while nothing honours them.

A model lists exactly the fields that are honoured; `null` always means the default. Ranges are SamplingParams'
business, and nothing here knows the model being served.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from echo_sched.errors import RequestError
from echo_sched.types import MAX_SEED

logger = logging.getLogger("echo_sched.server")

MAX_CHOICES = 128  # answers to one prompt, as in OpenAI's API

# Fields that clients are known to send, with the values (besides null) that ask for nothing. Anything else is a 400.
UNSUPPORTED_BODY: Mapping[str, tuple[Any, ...]] = {
    "token_ids_logprob": (),
    "return_hidden_states": (False,),
    "return_routed_experts": (False,),
    "lora_path": ("",),
    "image_data": (),
    "audio_data": (),
    "video_data": (),
    "input_embeds": (),
    "modalities": (),
    "session_params": ({},),
    "custom_logit_processor": ("",),
    "user": ("",),
    "metadata": ({},),
    "tools": (),
    "parallel_tool_calls": (True, False),  # says nothing without tools
}
UNSUPPORTED_SAMPLING: Mapping[str, tuple[Any, ...]] = {
    "ebnf": ("",),
    "structural_tag": ("",),
    "stop_regex": ("",),
    "spaces_between_special_tokens": (True,),
    "custom_params": ({},),
}


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("text holds half of a surrogate pair, which is no character") from None
    return text


Text = Annotated[str, AfterValidator(_encodable)]


class Body(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class SamplingBody(Body):
    """`sampling_params` of one prompt."""

    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[Text, float] | None = None  # by token id, which JSON can only write as a string
    allowed_token_ids: list[int] | None = None
    bad_token_ids: list[int] | None = None
    stop: Text | list[Text] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    json_schema: Text | dict[str, Any] | None = None  # "" is none, as in the next
    regex: Text | None = None
    sampling_seed: int | None = Field(None, ge=0, le=MAX_SEED)


class GenerateBody(Body):
    """Body of `POST /generate`: one prompt or a list, as text or as token ids."""

    text: Text | list[Text] | None = None
    input_ids: list[int] | list[list[int]] | None = None
    sampling_params: SamplingBody | list[SamplingBody] | None = None
    stream: bool | None = None
    rid: Text | list[Text] | None = None
    return_logprob: bool | list[bool] | None = None
    top_logprobs_num: int | list[int] | None = None
    logprob_start_len: int | list[int] | None = None
    return_text_in_logprobs: bool | None = None
    speculation: bool | None = None
    priority: float | list[float] | None = None
    tpot_slo_ms: float | list[float] | None = None


class AbortBody(Body):
    """Body of `POST /abort_request`."""

    rid: Text


_FIELDS = frozenset(name for model in (SamplingBody, GenerateBody, AbortBody) for name in model.model_fields)
SomeBody = TypeVar("SomeBody", bound=Body)


def parse_generate(data: dict[str, Any], unknown_fields: Literal["error", "warn"]) -> GenerateBody:
    """Raises RequestError naming the field."""
    data = _without_unsupported(data, UNSUPPORTED_BODY, "")
    sampling = data.get("sampling_params")
    if isinstance(sampling, dict):
        data["sampling_params"] = _without_unsupported(sampling, UNSUPPORTED_SAMPLING, "sampling_params.")
    elif isinstance(sampling, list):
        data["sampling_params"] = [
            _without_unsupported(item, UNSUPPORTED_SAMPLING, f"sampling_params[{index}].")
            if isinstance(item, dict)
            else item
            for index, item in enumerate(sampling)
        ]
    return parse(GenerateBody, data, unknown_fields)


def parse(model: type[SomeBody], data: dict[str, Any], unknown_fields: Literal["error", "warn"]) -> SomeBody:
    """`data` as a `model`. Raises RequestError naming the field."""
    try:
        body = model.model_validate(data, extra="forbid" if unknown_fields == "error" else "allow")
    except ValidationError as error:
        # Every branch of a union reports; the one that got furthest into the value is the one that was meant.
        worst = max(error.errors(include_url=False), key=lambda item: len(item["loc"]))
        unknown = worst["type"] == "extra_forbidden"
        path = _path(worst["loc"], keep_last=unknown)
        rule = "input should be an object" if worst["type"] == "model_type" else worst["msg"]
        rule = rule.removeprefix("Value error, ")
        message = f"unknown field {path!r}" if unknown else f"{path or 'the body'}: {rule[0].lower()}{rule[1:]}"
        raise RequestError(message, path or None) from error
    ignored = _unknown(body)
    if ignored:
        logger.warning("ignored unknown request fields: %s", ", ".join(ignored))
    return body


def _without_unsupported(data: dict[str, Any], rules: Mapping[str, tuple[Any, ...]], prefix: str) -> dict[str, Any]:
    for name, neutral in rules.items():
        value = data.get(name)
        if not _is_neutral(value, neutral):
            advice = f"leave it out or send {neutral[0]!r}" if neutral else "leave it out"
            raise RequestError(f"{prefix}{name} is not supported here; {advice}", prefix + name)
    return {name: value for name, value in data.items() if name not in rules}


def _is_neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    if isinstance(value, list):  # one per prompt, or an empty list of something
        return all(_is_neutral(item, neutral) for item in value)
    return value is None or any(value == n and isinstance(value, bool) == isinstance(n, bool) for n in neutral)


def _path(loc: Sequence[int | str], keep_last: bool) -> str:
    """`sampling_params[1].top_p` from pydantic's location, without the names of union branches."""
    path = ""
    for place, part in enumerate(loc):
        if isinstance(part, int):
            path += f"[{part}]"
        elif part in _FIELDS or (keep_last and place == len(loc) - 1):
            path += f".{part}" if path else part
    return path


def _unknown(body: Body) -> list[str]:
    match body:
        case GenerateBody(sampling_params=SamplingBody() as sampling):
            nested = [sampling]
        case GenerateBody(sampling_params=list() as several):
            nested = several
        case _:
            nested = []
    return [name for part in (body, *nested) for name in part.model_extra or {}]
