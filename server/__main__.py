"""`python -m server`, which is `echo-sched serve`: flags, socket, signals and the exit code.

Exit codes: 0 after a drain, 1 when the engine failed, 2 when it could not start, 128 + signal when a second signal cut
the drain short.
"""

import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence
from types import FrameType

import uvicorn

from echo_sched.cli import Parser, run
from echo_sched.config import EngineConfig
from echo_sched.errors import ConfigError, EchoSchedError
from echo_sched.flags import add_engine_flags, engine_config
from server.app import create_app
from server.bridge import EngineBridge
from server.engine_thread import EngineLoop
from server.settings import ServerSettings, add_server_flags, server_settings
from server.startup import curl, facts, unused_gpu

logger = logging.getLogger("echo_sched.server")

FLUSH_SECONDS = 5  # how long clients get to read their last bytes once the engine is done
BACKLOG = 2048


class Service(uvicorn.Server):
    """uvicorn that drains on the first signal and leaves when the bridge has ended."""

    def __init__(self, bridge: EngineBridge) -> None:
        super().__init__(
            uvicorn.Config(
                create_app(bridge),
                lifespan="on",
                log_config=None,
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=FLUSH_SECONDS,
            )
        )
        self.forced_by: int | None = None  # the second signal
        self._bridge = bridge
        self._draining = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._draining:
            self.forced_by = sig
            self.force_exit = True
        if self._draining or not self.started:
            self.should_exit = True
        else:
            self._draining = True
            self._bridge.request_drain()

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self._bridge.ended


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, taken before the model is loaded. Raises ConfigError."""
    listener = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {(error.strerror or str(error)).lower()}") from error
    return listener


def serve(load: Callable[[], EngineLoop], settings: ServerSettings, listener: socket.socket) -> int:
    """Serve until a signal or the engine's end, and return the exit code. Raises EchoSchedError when loading fails."""
    bridge = EngineBridge(load, settings)
    service = Service(bridge)
    service.run(sockets=[listener])
    if bridge.state == "load_failed":
        if isinstance(bridge.error, EchoSchedError):
            raise bridge.error
        logger.error("the model could not be loaded", exc_info=bridge.error)
    code = 1 if bridge.error is not None else 0
    if service.forced_by is not None:
        code = 128 + service.forced_by
    if bridge.busy:
        # The engine's thread is deep in torch, and an interpreter that is taken down around it may crash.
        logging.shutdown()
        os._exit(code)
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the flags, take the port, then load the model and serve."""
    parser = Parser(
        prog="echo-sched serve",
        description="Serve a model over HTTP with speculative decoding under one draft budget for the whole batch.",
        epilog="SIGTERM and Ctrl-C finish what runs (see --drain-timeout); a second one stops at once.",
    )
    add_server_flags(parser)
    add_engine_flags(parser)
    args = parser.parse_args(argv)
    settings, config = server_settings(args), engine_config(args)
    listener = bind(settings.host, settings.port)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("echo_sched").setLevel(logging.INFO)
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    logger.info("listening on %s, loading %s", url, config.model)
    code = serve(lambda: _load(config, settings, url), settings, listener)
    logger.info("stopped")
    return code


def _load(config: EngineConfig, settings: ServerSettings, url: str) -> EngineLoop:
    from echo_sched.loop import DecodeLoop  # brings torch, which a port in use need not wait for

    loop = DecodeLoop.from_config(config)
    # The first call settles a tokenizer's truncation, which would raise beside a decode in the engine's thread.
    loop.tokenizer("a")
    for fact in facts(loop):
        logger.info("%s", fact)
    warning = unused_gpu()
    if warning is not None:
        logger.warning("%s", warning)
    logger.info("ready on %s; try:\n%s", url, curl(url, needs_key=settings.api_key is not None))
    return loop


if __name__ == "__main__":
    run(main)
