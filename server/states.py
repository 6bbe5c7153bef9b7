"""The states of a server's engine, and what is said to those who ask when it does not serve."""

from typing import Literal

from server.errors import ApiError, unavailable

State = Literal["loading", "ready", "draining", "stopped", "load_failed", "failed"]

ENDED: tuple[State, ...] = ("stopped", "load_failed", "failed")  # nothing will be served any more

_REASONS: dict[State, str] = {
    "loading": "the model is still loading",
    "draining": "the server is shutting down",
    "stopped": "the server is shutting down",
    "load_failed": "the model could not be loaded",
    "failed": "the engine has failed and the server is stopping",
}


def refusal(state: State) -> ApiError:
    """503, for any state but ready."""
    return unavailable(_REASONS[state], code=state)
