"""Changes of settings that are under way: asked for in the event loop, made by the engine's thread, answered here.

Lives in the event loop's thread. Knows nothing of what is changed.
"""

import asyncio


class PendingChanges:
    """One future per change; every one of them is answered, even when the engine ends first."""

    def __init__(self) -> None:
        self._open: set[asyncio.Future[None]] = set()

    def begin(self) -> "asyncio.Future[None]":
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open.add(answer)
        answer.add_done_callback(self._open.discard)
        return answer

    def settle(self, answer: "asyncio.Future[None]", error: Exception | None) -> None:
        """The engine has made the change, or has refused it. Whoever asked may be gone."""
        if answer.done():
            return
        if error is None:
            answer.set_result(None)
        else:
            answer.set_exception(error)

    def fail(self, error: Exception) -> None:
        """Nobody will make any of them."""
        for answer in list(self._open):
            self.settle(answer, error)
