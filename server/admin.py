"""`/admin/scheduler`: what the scheduler is at, and changes of its settings while requests run (`off` stops drafting).

Behind the API key where there is one. Which values are possible is the engine's business; it refuses by field.
"""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from echo_sched.arms import LIVE_SETTINGS
from echo_sched.config import EngineConfig
from server import replies
from server.bridge import EngineBridge
from server.guard import read_json

router = APIRouter()


def _body() -> dict[str, Any]:
    """What /docs says of the body: engine settings, none of them required."""
    known = EngineConfig.model_json_schema()["properties"]
    settings = {name: {key: known[name][key] for key in known[name] if key != "default"} for name in LIVE_SETTINGS}
    by_depth = {"type": "object", "additionalProperties": {"type": ["number", "null"], "minimum": 0, "maximum": 1}}
    settings["thresholds"] = {"anyOf": [settings["thresholds"], by_depth]}
    schema = {"type": "object", "properties": settings, "additionalProperties": False}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


@router.get("/admin/scheduler")
async def get_scheduler(request: Request) -> Response:
    """Settings, thresholds in force, live AUC and calibration error by depth, and counts."""
    bridge: EngineBridge = request.app.state.bridge
    _ = bridge.model  # 503 before there is one
    return JSONResponse(replies.scheduler(bridge))


@router.post("/admin/scheduler", openapi_extra=_body())
async def set_scheduler(request: Request) -> Response:
    """Change the settings that the body names; null and what is left out stay as they are.

    Answers when the change is in force: from the next step on, for requests that run too. Their tokens do not change.
    """
    bridge: EngineBridge = request.app.state.bridge
    body = await read_json(request, bridge.settings.max_body_bytes)
    await bridge.reschedule({name: value for name, value in body.items() if value is not None})
    return JSONResponse(replies.scheduler(bridge))
