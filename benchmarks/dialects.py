"""The two ways of asking a server to generate: this product's native `/generate` and OpenAI's `/v1/completions`.

A dialect writes a request body and reads the events of the streamed answer. Nothing here opens a connection.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol


class Generation(NamedTuple):
    """How every prompt of a run is to be answered."""

    max_new_tokens: int
    temperature: float
    ignore_eos: bool
    seed: int  # of the first request; request i takes seed + i
    extra_body: dict[str, Any]


@dataclass
class Answer:
    """What one streamed answer has said so far."""

    output_times: list[float] = field(default_factory=list)
    num_input_tokens: int | None = None
    num_output_tokens: int | None = None
    finish: str | None = None
    finish_time: float | None = None
    error: str | None = None

    def end(self, reason: str, now: float) -> None:
        self.finish, self.finish_time = reason, now


class Dialect(Protocol):
    path: str

    def body(self, index: int, prompt: str | list[int], generation: Generation) -> dict[str, Any]:
        """The JSON body that asks for request `index`; `prompt` is text or token ids."""

    def read(self, event: dict[str, Any], now: float, answer: Answer) -> None:
        """Take in one event that arrived at `now`. Raises KeyError, TypeError or AttributeError for a foreign shape."""


class Native:
    """`POST /generate`: every event carries the whole answer so far and its exact token counts."""

    path = "/generate"

    def body(self, index: int, prompt: str | list[int], generation: Generation) -> dict[str, Any]:
        body = {
            "text" if isinstance(prompt, str) else "input_ids": prompt,
            "sampling_params": {
                "max_new_tokens": generation.max_new_tokens,
                "temperature": generation.temperature,
                "ignore_eos": generation.ignore_eos,
                "sampling_seed": generation.seed + index,
            },
            "stream": True,
        }
        return merged(body, generation.extra_body)

    def read(self, event: dict[str, Any], now: float, answer: Answer) -> None:
        if "error" in event:
            answer.error = error_message(event)
            return
        meta = event["meta_info"]
        if meta["completion_tokens"] > (answer.num_output_tokens or 0):
            answer.output_times.append(now)
        answer.num_input_tokens = meta["prompt_tokens"]
        answer.num_output_tokens = meta["completion_tokens"]
        if meta.get("finish_reason"):
            answer.end(meta["finish_reason"]["type"], now)


class Completions:
    """`POST /v1/completions`: events carry pieces of text, the last one the token counts."""

    path = "/v1/completions"

    def __init__(self, model: str) -> None:
        self.model = model

    def body(self, index: int, prompt: str | list[int], generation: Generation) -> dict[str, Any]:
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": generation.max_new_tokens,
            "temperature": generation.temperature,
            "seed": generation.seed + index,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if generation.ignore_eos:  # not OpenAI's own: sent only to servers that are asked to know it
            body["ignore_eos"] = True
        return merged(body, generation.extra_body)

    def read(self, event: dict[str, Any], now: float, answer: Answer) -> None:
        if "error" in event:
            answer.error = error_message(event)
            return
        if usage := event.get("usage"):
            answer.num_input_tokens = usage["prompt_tokens"]
            answer.num_output_tokens = usage["completion_tokens"]
        for choice in event["choices"]:
            finish = choice.get("finish_reason")
            # An end without text is no output, unless all tokens of the answer were special and it is all there is.
            if choice["text"] or (finish and not answer.output_times):
                answer.output_times.append(now)
            if finish:
                answer.end(finish, now)


def merged(body: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """`body` with `extra` on top; an object inside is merged, not replaced."""
    both = {key: body[key] | value for key, value in extra.items() if _objects(body.get(key), value)}
    return body | extra | both


def error_message(document: Any) -> str:
    """The reason in an error body of either dialect."""
    error = document.get("error", document) if isinstance(document, dict) else document
    return str(error.get("message", error) if isinstance(error, dict) else error)


def _objects(*values: Any) -> bool:
    return all(isinstance(value, dict) for value in values)
