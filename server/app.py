"""The ASGI application around one engine. Knows nothing of sockets, signals or processes."""

import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from server.admin import router as admin_router
from server.bridge import EngineBridge
from server.errors import add_error_handlers
from server.guard import ApiKeyGuard
from server.routes import router
from server.version import package_version

logger = logging.getLogger("echo_sched.server")


def create_app(bridge: EngineBridge) -> FastAPI:
    """The app that serves `bridge`'s engine; its lifespan starts the engine's thread and ends it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        bridge.start()
        try:
            yield
        finally:
            if not await bridge.close():
                logger.warning("the engine's thread is still busy; leaving it behind")

    app = FastAPI(title="echo-sched", version=package_version(), lifespan=lifespan)
    app.state.bridge = bridge
    app.state.started_at = int(time.time())
    app.include_router(router)
    app.include_router(admin_router)
    add_error_handlers(app)
    if bridge.settings.api_key is not None:
        app.add_middleware(ApiKeyGuard, key=bridge.settings.api_key.get_secret_value())
    return app
