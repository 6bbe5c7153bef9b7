"""The routes: each reads a request, asks the bridge, and shapes the answer."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from server import replies
from server.bridge import EngineBridge
from server.errors import bad_request, to_api_error
from server.generation import Generation
from server.guard import read_json
from server.intake import check_size, is_batch, to_requests
from server.schemas import AbortBody, GenerateBody, parse, parse_generate
from server.sse import DONE, EventStream, event, unless_disconnected
from server.version import package_version

router = APIRouter()


def _body_of(path: str, model: type[GenerateBody] | type[AbortBody]) -> dict[str, Any]:
    """What /docs says of a body that the route reads itself."""
    place = f"#/paths/~1{path}/post/requestBody/content/application~1json/schema/$defs/{{model}}"
    schema = model.model_json_schema(ref_template=place)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _bridge(request: Request) -> EngineBridge:
    bridge: EngineBridge = request.app.state.bridge
    return bridge


@router.post("/generate", openapi_extra=_body_of("generate", GenerateBody))
async def generate(request: Request) -> Response:
    """Continue one prompt or a list of prompts, whole or as server-sent events."""
    bridge = _bridge(request)
    settings = bridge.settings
    body = parse_generate(await read_json(request, settings.max_body_bytes), settings.unknown_fields)
    check_size(body, bridge.max_sequences)
    # In a thread, so that a long text does not hold up everybody's streams.
    requests = await asyncio.to_thread(to_requests, body, bridge.model)
    generation = bridge.submit(requests)
    if body.stream:
        return await _stream(request, bridge, generation, is_batch(body))
    try:
        await unless_disconnected(request.receive, generation.finished())
    finally:
        bridge.release(generation)
    results = [replies.generated(output, is_batch(body)) for output in generation.outputs]
    return Response(json.dumps(results if is_batch(body) else results[0]), media_type="application/json")


async def _stream(request: Request, bridge: EngineBridge, generation: Generation, batch: bool) -> Response:
    # The status line waits for the first output: whatever fails before it is a plain error, not a broken stream.
    try:
        await unless_disconnected(request.receive, generation.started())
    except BaseException:  # a cancelled request too must give its slot back
        bridge.release(generation)
        raise
    return EventStream(_events(generation, batch), on_close=lambda: bridge.release(generation))


async def _events(generation: Generation, batch: bool) -> AsyncIterator[bytes]:
    try:
        async for outputs in generation.updates():
            for output in outputs:
                yield event(replies.generated(output, batch))
    except Exception as error:  # the status line is out: what failed can only be said inside the stream
        yield event(to_api_error(error).body)
    yield DONE


@router.post("/abort_request", openapi_extra=_body_of("abort_request", AbortBody))
async def abort_request(request: Request) -> Response:
    """End a request now; its caller gets what there is, with finish reason "abort"."""
    bridge = _bridge(request)
    settings = bridge.settings
    body = parse(AbortBody, await read_json(request, settings.max_body_bytes), settings.unknown_fields)
    if not bridge.abort(body.rid, "aborted by /abort_request"):
        raise bad_request(f"no request with rid {body.rid!r} is running or waiting", param="rid", code="not_found")
    return JSONResponse({"rid": body.rid, "aborted": True})


@router.get("/health")
async def health(request: Request) -> Response:
    """Alive: 503 only when a restart would help."""
    bridge = _bridge(request)
    return _probe(bridge, alive=bridge.state not in ("failed", "load_failed") and not bridge.stalled)


@router.get("/ready")
@router.get("/health_generate")
async def ready(request: Request) -> Response:
    """Whether a request sent now would be served."""
    bridge = _bridge(request)
    return _probe(bridge, alive=bridge.state == "ready" and not bridge.stalled)


def _probe(bridge: EngineBridge, alive: bool) -> Response:
    status = "stalled" if bridge.stalled else bridge.state
    return JSONResponse({"status": status}, status_code=200 if alive else 503)


@router.get("/get_server_info")
async def get_server_info(request: Request) -> Response:
    return JSONResponse(replies.server_info(_bridge(request)))


@router.get("/get_model_info")
async def get_model_info(request: Request) -> Response:
    return JSONResponse(replies.model_info(_bridge(request).model))


@router.get("/v1/models")
async def list_models(request: Request) -> Response:
    return JSONResponse(replies.model_list(_bridge(request).model, request.app.state.started_at))


@router.get("/version")
async def version() -> Response:
    return JSONResponse({"version": package_version()})


@router.get("/metrics", include_in_schema=False)
async def metrics(request: Request) -> Response:
    return Response(_bridge(request).metrics.render(), media_type=CONTENT_TYPE_LATEST)
