"""What happens to a request before any route reads it: the API key, the size of the body, and strict JSON.

Knows nothing of what the routes mean.
"""

import hmac
import json
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from server.errors import ApiError, bad_request, error_response

OPEN_PATHS = frozenset({"/health", "/ready", "/metrics"})  # probes and scrapers carry no key


class ApiKeyGuard:
    """ASGI middleware: every path but OPEN_PATHS needs `Authorization: Bearer <key>`, compared in constant time."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._expected = f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            return await self._app(scope, receive, send)
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        if hmac.compare_digest(given, self._expected):
            return await self._app(scope, receive, send)
        message = "this server needs an API key: send it as 'Authorization: Bearer KEY'"
        refusal = ApiError(401, message, type="authentication_error", code="invalid_api_key")
        await error_response(refusal)(scope, receive, send)


async def read_json(request: Request, max_bytes: int) -> dict[str, Any]:
    """The request's JSON object.

    Raises ApiError: 413 above `max_bytes`, 400 for another content type, malformed JSON or anything but an object.
    NaN and Infinity, which Python's parser accepts, are left in place for the schema to refuse by field name.
    """
    content_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if content_type != "application/json":
        named = repr(content_type) if content_type else "none"
        message = f"the Content-Type header must be application/json, got {named}"
        raise bad_request(message, param="Content-Type", code="wrong_content_type")
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > max_bytes:
            raise bad_request(f"the body is larger than {max_bytes} bytes", code="body_too_large", status=413)
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise bad_request(f"the body is not valid JSON: {reason}", code="malformed_json") from error
    if not isinstance(value, dict):
        raise bad_request("the body must be a JSON object", code="malformed_json")
    return value
