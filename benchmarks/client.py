"""Sends the requests of a load test over HTTP, at their times and within a bound, and notes what became of each.

One asyncio loop; no request's failure stops another. Knows nothing of prompts or statistics.
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import httpx

from benchmarks.dialects import Answer, Dialect, error_message
from benchmarks.metrics import Kind, Outcome
from benchmarks.scrape import Counters, read_counters
from echo_sched.errors import ConfigError

CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 600.0  # a stream that says nothing for this long has failed
REJECTED_STATUS = (429, 503)
CANCELLED_FINISH = "abort"


class ServerFacts(NamedTuple):
    """What a server says about itself; None where it does not."""

    model_path: str | None  # the folder or hub id its tokenizer can be read from
    model_name: str | None  # what the OpenAI routes call it
    info: dict[str, Any]  # everything it reports but secrets


def open_client(base_url: str, api_key: str | None) -> httpx.AsyncClient:
    """Raises ConfigError for an address that is none."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    if not base_url.startswith(("http://", "https://")):
        raise ConfigError(f"--base-url must begin with http:// or https://, got {base_url!r}")
    try:
        return httpx.AsyncClient(
            base_url=base_url,
            headers=headers,
            timeout=httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=False,  # a proxy between us and the server would be measured too
        )
    except httpx.InvalidURL as error:
        raise ConfigError(f"--base-url {base_url!r}: {error}") from error


async def read_server_facts(client: httpx.AsyncClient) -> ServerFacts:
    """Raises ConfigError when nothing answers or the server wants an API key."""
    info = await _get_json(client, "/get_server_info") or {}
    models = (await _get_json(client, "/v1/models") or {}).get("data") or [{}]
    return ServerFacts(info.get("model_path") or models[0].get("root"), models[0].get("id"), _without_secrets(info))


async def scrape(client: httpx.AsyncClient) -> Counters:
    """The server's speculation counters; empty when it has none to show."""
    try:
        response = await client.get("/metrics")
        return read_counters(response.text) if response.status_code == 200 else {}
    except (httpx.HTTPError, ValueError):
        return {}


async def send(client: httpx.AsyncClient, dialect: Dialect, body: dict[str, Any]) -> Outcome:
    """One request from sending to its end, whatever that is."""
    answer = Answer()
    start = time.perf_counter()

    def outcome(kind: Kind, reason: str | None = None) -> Outcome:
        end = answer.finish_time if kind == "completed" and answer.finish_time else time.perf_counter()
        counts = answer.num_input_tokens or 0, answer.num_output_tokens or 0
        return Outcome(kind, start, end, tuple(answer.output_times), *counts, reason)

    try:
        async with client.stream("POST", dialect.path, json=body) as response:
            if response.status_code != 200:
                kind: Kind = "rejected" if response.status_code in REJECTED_STATUS else "failed"
                return outcome(kind, f"{response.status_code}: {_reason(await response.aread())}")
            async for line in response.aiter_lines():
                data = line.removeprefix("data:").strip()
                if line.startswith("data:") and data != "[DONE]":
                    dialect.read(json.loads(data), time.perf_counter(), answer)
    except httpx.HTTPError as error:
        return outcome("failed", f"{type(error).__name__}: {error}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return outcome("failed", f"unreadable event in the stream: {type(error).__name__}: {error}")
    return outcome(*_verdict(answer))


async def drive(
    client: httpx.AsyncClient,
    dialect: Dialect,
    bodies: Sequence[dict[str, Any]],
    arrivals: Sequence[float],
    max_concurrency: int | None,
    on_end: Callable[[], None],
) -> list[Outcome]:
    """All requests, request i not before `arrivals[i]` seconds and never more than `max_concurrency` at once.

    A request that waits for its place is sent late; its latencies count from the moment it was sent.
    """
    places = asyncio.Semaphore(max_concurrency or len(bodies))
    start = time.perf_counter()

    async def one(body: dict[str, Any], arrival: float) -> Outcome:
        await asyncio.sleep(max(0.0, start + arrival - time.perf_counter()))
        async with places:
            result = await send(client, dialect, body)
        on_end()
        return result

    return await asyncio.gather(*(one(body, arrival) for body, arrival in zip(bodies, arrivals, strict=True)))


def _verdict(answer: Answer) -> tuple[Kind, str | None]:
    """What a stream that closed normally amounts to."""
    if answer.error is not None:
        return "failed", answer.error
    if answer.finish is None:
        return "failed", "the stream ended without a finish reason"
    if answer.finish == CANCELLED_FINISH:
        return "cancelled", "the server aborted the request"
    if answer.num_output_tokens is None:
        return "failed", "the server reported no token counts"
    if not answer.output_times:
        return "failed", "the stream carried no output"
    return "completed", None


def _reason(body: bytes) -> str:
    try:
        return error_message(json.loads(body))
    except ValueError:
        return body.decode(errors="replace")[:200] or "no reason given"


def _without_secrets(document: Any) -> Any:
    """Some servers list their own API key among their settings."""
    if not isinstance(document, dict):
        return document
    return {name: _without_secrets(value) for name, value in document.items() if "api_key" not in name}


async def _get_json(client: httpx.AsyncClient, path: str) -> dict[str, Any] | None:
    try:
        response = await client.get(path)
    except httpx.HTTPError as error:
        raise ConfigError(f"cannot reach {client.base_url}: {error or type(error).__name__}") from error
    if response.status_code in (401, 403):
        raise ConfigError(f"{client.base_url} refuses {path} ({response.status_code}): give --api-key")
    try:
        document = response.json() if response.status_code == 200 else None
    except ValueError:
        return None
    return document if isinstance(document, dict) else None
