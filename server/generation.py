"""What one HTTP call waits for: the outputs of its requests as they grow, and the signals that wake it.

Lives in the event loop's thread. Knows nothing of engines, JSON or sockets.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from echo_sched.types import FinishReason, Request, RequestStats, TokenLogprobs
from server.reports import Progress


@dataclass(eq=False)
class Output:
    """One request's output so far. Times are time.monotonic()."""

    request: Request
    index: int  # place in the call's list of prompts
    arrived_at: float
    updated_at: float
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # empty unless asked for, as the next
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish: FinishReason | None = None
    stats: RequestStats = field(default_factory=RequestStats)

    def advance(self, progress: Progress, at: float) -> None:
        self.text += progress.text
        self.token_ids.extend(progress.token_ids)
        self.logprobs.extend(progress.logprobs)
        self.prompt_logprobs.extend(progress.prompt_logprobs)
        self.finish = progress.finish
        self.stats = progress.stats
        self.updated_at = at

    def end(self, finish: FinishReason, at: float) -> None:
        self.finish = finish
        self.updated_at = at


class Generation:
    """The outputs of one call, one per prompt."""

    def __init__(self, requests: Sequence[Request], arrived_at: float) -> None:
        self.arrived_at = arrived_at
        self.deadline: asyncio.TimerHandle | None = None
        self.outputs = [Output(request, index, arrived_at, arrived_at) for index, request in enumerate(requests)]
        self._changed: dict[int, Output] = {}  # by index: several steps between two looks make one update
        self._num_open = len(self.outputs)
        self._error: Exception | None = None
        self._wake = asyncio.Event()
        self._over = asyncio.Event()

    @property
    def open_outputs(self) -> list[Output]:
        return [] if self._error else [output for output in self.outputs if output.finish is None]

    def notify(self, output: Output) -> None:
        """`output` has grown, or has ended (which happens once)."""
        self._changed[output.index] = output
        self._wake.set()
        if output.finish is not None:
            self._num_open -= 1
        if self._num_open == 0:
            self._over.set()

    def fail(self, error: Exception) -> None:
        """The whole call ends with `error`."""
        self._error = error
        self._wake.set()
        self._over.set()

    async def started(self) -> None:
        """Returns with the first output; raises the error of a call that failed before it had any."""
        await self._wake.wait()
        if self._error:
            raise self._error

    async def finished(self) -> None:
        """Returns when every output has ended; raises the error of a call that failed."""
        await self._over.wait()
        if self._error:
            raise self._error

    async def updates(self) -> AsyncIterator[list[Output]]:
        """The outputs that changed since the last look, until all have ended; raises as `finished` does."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._error:
                raise self._error
            changed, self._changed = self._changed, {}
            yield list(changed.values())
            if self._over.is_set() and not self._changed:
                return
