"""Errors as HTTP sees them: one JSON shape for every status, so that a client needs one parser.

{"error": {"message": str, "type": str, "param": str | null, "code": str | null}}
"""

import json
import logging
from typing import Any, NamedTuple

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from echo_sched.errors import QueueFullError, RequestError

logger = logging.getLogger("echo_sched.server")

RETRY_QUEUE_SECONDS = 1  # a queue moves at the pace of requests
RETRY_START_SECONDS = 5  # a model loads, or another process takes over
CLIENT_CLOSED_REQUEST = 499  # nobody is left to read it; it only shows in logs


class ApiError(Exception):
    """An answer other than success. Raised anywhere below a route."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str,
        param: str | None = None,
        code: str | None = None,
        retry_after: int = 0,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after  # seconds; 0 sends no header
        self.detail = {"message": message, "type": type, "param": param, "code": code}

    @property
    def body(self) -> dict[str, Any]:
        return {"error": self.detail}


def bad_request(message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> ApiError:
    return ApiError(status, message, type="invalid_request_error", param=param, code=code)


def unavailable(message: str, *, code: str, retry_after: int = RETRY_START_SECONDS) -> ApiError:
    return ApiError(503, message, type="service_unavailable", code=code, retry_after=retry_after)


def engine_failed(reason: str) -> ApiError:
    return ApiError(500, f"the engine failed: {reason}", type="server_error", code="engine_failed")


def to_api_error(error: Exception) -> ApiError:
    """The answer that an exception stands for; anything unexpected is a 500 that leaks no text, and is logged here."""
    match error:
        case ApiError():
            return error
        case RequestError():
            return bad_request(str(error), param=error.param)
        case QueueFullError():
            return unavailable(str(error), code="queue_full", retry_after=RETRY_QUEUE_SECONDS)
        case _:
            logger.error("a request failed", exc_info=error)
            return ApiError(
                500, "internal error; the server's log has the details", type="server_error", code="internal"
            )


def error_response(error: Exception) -> Response:
    answer = to_api_error(error)
    headers = {"Retry-After": str(answer.retry_after)} if answer.retry_after else None
    # json.dumps escapes what UTF-8 cannot carry: a message may quote a client's lone surrogates.
    return Response(json.dumps(answer.body), answer.status, headers, media_type="application/json")


def add_error_handlers(app: FastAPI) -> None:
    """Give every failure of `app` the one shape."""

    async def known(request: Request, error: Exception) -> Response:
        return error_response(error)

    async def routing(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        rule = _ROUTING.get(error.status_code, _Rule("{detail}", None))
        message = rule.message.format(method=request.method, path=request.url.path, detail=error.detail)
        response = error_response(bad_request(message, code=rule.code, status=error.status_code))
        response.headers.update(error.headers or {})
        return response

    async def gone(request: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    for family in (ApiError, RequestError, QueueFullError):
        app.add_exception_handler(family, known)
    app.add_exception_handler(HTTPException, routing)
    app.add_exception_handler(ClientDisconnect, gone)
    app.add_middleware(LastResort)


class LastResort:
    """ASGI middleware: our own bugs become a logged traceback and a 500, and the connection lives on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            if begun or scope["type"] != "http":
                raise
            await error_response(error)(scope, receive, send)


class _Rule(NamedTuple):
    message: str
    code: str | None


_ROUTING = {
    404: _Rule("no such route: {path}", "not_found"),
    405: _Rule("{path} does not answer {method}", "method_not_allowed"),
}
