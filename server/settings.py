"""Settings of the HTTP side, and the one source of its command-line flags (the engine's are in echo_sched.config).

Knows nothing of engines or routes.
"""

import argparse
import os
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from echo_sched.errors import ConfigError
from echo_sched.flags import flag_of

API_KEY_VARIABLE = "ECHO_SCHED_API_KEY"


class ServerSettings(BaseModel):
    """How the service listens, queues and stops. Field descriptions are the flags' help texts."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    host: str = Field("127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on (0: any free one)")
    max_queued_requests: int = Field(
        256, ge=0, description="sequences that may wait for a KV slot; beyond that clients get 503"
    )
    request_timeout: float | None = Field(
        None, gt=0, description="seconds after which a request is ended with a reason (default: never)"
    )
    drain_timeout: float = Field(30.0, ge=0, description="seconds that running requests get to finish on SIGTERM")
    stall_timeout: float = Field(60.0, gt=0, description="seconds in one step after which the engine counts as stalled")
    unknown_fields: Literal["error", "warn"] = Field(
        "error", description="what an unknown request field is: an error, or a line in the log"
    )
    max_body_bytes: int = Field(16 * 1024 * 1024, ge=1, description="largest request body accepted")
    api_key: SecretStr | None = Field(
        None, min_length=1, description=f"key that clients must send as a bearer token (or set {API_KEY_VARIABLE})"
    )


def add_server_flags(parser: argparse.ArgumentParser) -> None:
    """One flag per ServerSettings field. Values stay text; `server_settings` converts and checks them."""
    group = parser.add_argument_group("server")
    for name, field in ServerSettings.model_fields.items():
        choices = get_args(field.annotation) if name == "unknown_fields" else None
        default = "" if field.default is None else f" (default: {field.default})"
        group.add_argument(
            flag_of(name), choices=choices, metavar=None if choices else "VALUE", help=f"{field.description}{default}"
        )


def server_settings(args: argparse.Namespace) -> ServerSettings:
    """The settings that the flags and the environment ask for. Raises ConfigError naming the flag."""
    given = {name: getattr(args, name) for name in ServerSettings.model_fields}
    if given["api_key"] is None:
        given["api_key"] = os.environ.get(API_KEY_VARIABLE) or None
    try:
        return ServerSettings.model_validate({name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        shown = "" if name == "api_key" else f", got {given[name]!r}"
        raise ConfigError(f"{flag_of(name)}: {first['msg'].lower()}{shown}") from error
