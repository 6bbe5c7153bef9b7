"""Where the engine's thread and the event loop meet: a bounded queue, routing of tokens, cancelling, draining, failing.

All of its state belongs to the event loop's thread; the engine's thread reaches it only through call_soon_threadsafe.
Knows nothing of HTTP beyond the errors that clients get.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from echo_sched.errors import QueueFullError, RequestError
from echo_sched.types import FinishReason, Request
from server.changes import PendingChanges
from server.engine_thread import EngineLoop, EngineThread
from server.errors import engine_failed, to_api_error
from server.generation import Generation, Output
from server.heard import Heard
from server.metrics import Metrics
from server.open_requests import OpenRequests
from server.reports import Report, ServedModel
from server.settings import ServerSettings
from server.states import ENDED, State, refusal

logger = logging.getLogger("echo_sched.server")

JOIN_SECONDS = 5.0  # how long a stopping server waits for the engine's last step


class EngineBridge:
    """One engine for one app. `start` it in a running event loop and `close` it there."""

    def __init__(self, load: Callable[[], EngineLoop], settings: ServerSettings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.state: State = "loading"
        self.error: Exception | None = None  # why the state is load_failed or failed
        self.heard = Heard()
        self._load = load
        self._model: ServedModel | None = None
        self._open = OpenRequests()
        self._changes = PendingChanges()

    # -- facts --

    @property
    def ended(self) -> bool:
        """Nothing will be served any more: it is time for the process to exit."""
        return self.state in ENDED

    @property
    def stalled(self) -> bool:
        since = self._thread.stepping_since
        return since is not None and time.monotonic() - since > self.settings.stall_timeout

    @property
    def model(self) -> ServedModel:
        """The loaded model. Raises ApiError 503 before there is one."""
        if self._model is None:
            raise refusal(self.state)
        return self._model

    @property
    def max_sequences(self) -> int:
        """How many may run or wait. A call of more can never fit."""
        return self.model.config.max_batch_size + self.settings.max_queued_requests

    @property
    def busy(self) -> bool:
        """The engine's thread is still there."""
        return self._thread.alive

    # -- life --

    def start(self) -> None:
        self._aio = asyncio.get_running_loop()
        self._thread = EngineThread(self._load, self, self._aio.call_soon_threadsafe)
        self._thread.start()

    def request_drain(self) -> None:
        """`drain` for other threads and signal handlers."""
        self._aio.call_soon_threadsafe(self.drain)

    def drain(self) -> None:
        """Refuse new work, finish what was accepted within the drain timeout, then stop."""
        if self.state == "loading":
            self._stop()
        elif self.state == "ready":
            self.state = "draining"
            self._aio.call_later(self.settings.drain_timeout, self._abort_all, "the server is shutting down")
            self._stop_if_drained()

    async def close(self) -> bool:
        """Stop the engine's thread; False if it is still busy (loading, or inside a step) after JOIN_SECONDS."""
        self._thread.stop()
        patience = 0.0 if self._model is None else JOIN_SECONDS
        return await asyncio.to_thread(self._thread.join, patience)

    # -- work --

    def submit(self, requests: Sequence[Request]) -> Generation:
        """Hand requests to the engine, all or none. Pair it with `release`.

        Raises ApiError (503) when the engine does not serve, QueueFullError at the queue's bound, RequestError for ids
        in use.
        """
        if self.state != "ready":
            raise refusal(self.state)
        self._check_queue(len(requests))
        self._open.check_names(requests)
        generation = Generation(requests, time.monotonic())
        self._open.add(generation)
        self._thread.add(requests, generation.arrived_at)
        timeout = self.settings.request_timeout
        if timeout is not None:
            reason = f"the request took longer than {timeout:g} s"
            generation.deadline = self._aio.call_later(timeout, self._abort_generation, generation, reason)
        return generation

    def release(self, generation: Generation) -> None:
        """The caller has what it wants or is gone: whatever still runs is cancelled."""
        if generation.deadline is not None:
            generation.deadline.cancel()
        self._abort_generation(generation, "the client is gone")

    def abort(self, rid: str, reason: str) -> bool:
        """End what the client calls `rid` now, with what it has: a request, or all answers to a prompt. False if there
        is no such thing."""
        found = self._open.named(rid)
        for generation, output in found:
            self._abort_output(generation, output, reason)
        return bool(found)

    async def reschedule(self, changes: Mapping[str, Any]) -> None:
        """Change scheduling settings; returns once they are in force.

        Raises RequestError for what cannot be, ApiError (503) when the engine does not run.
        """
        if self.state not in ("ready", "draining"):
            raise refusal(self.state)
        answer = self._changes.begin()
        self._thread.reschedule(changes, answer)
        await answer
        logger.info("scheduling settings changed: %s", ", ".join(f"{name} {value}" for name, value in changes.items()))

    def _abort_output(self, generation: Generation, output: Output, reason: str) -> None:
        self._thread.cancel([output.request])
        output.end(FinishReason("abort", message=reason), time.monotonic())
        self._forget(output)
        generation.notify(output)

    def _abort_generation(self, generation: Generation, reason: str) -> None:
        for output in generation.open_outputs:
            self._abort_output(generation, output, reason)

    def _abort_all(self, reason: str) -> None:
        for generation, output in self._open.all():
            self._abort_output(generation, output, reason)

    def _check_queue(self, num_new: int) -> None:
        if len(self._open) + num_new > self.max_sequences:
            raise QueueFullError(
                f"the queue is full: {len(self._open)} requests are running or waiting; try again later"
            )

    def _forget(self, output: Output) -> None:
        self._open.remove(output)
        if output.finish is not None:
            self.metrics.finished(output.finish.type, output.updated_at - output.arrived_at)
        self._stop_if_drained()

    def _stop_if_drained(self) -> None:
        if self.state == "draining" and not self._open:
            self._stop()

    def _stop(self) -> None:
        self.state = "stopped"
        self._thread.stop()
        self._changes.fail(refusal("stopped"))

    # -- Listener --

    def on_ready(self, model: ServedModel) -> None:
        self._model = model
        self.metrics.describe(model)
        if self.state == "loading":
            self.state = "ready"

    def on_load_error(self, error: Exception) -> None:
        if self.state == "loading":
            self.state, self.error = "load_failed", error

    def on_report(self, report: Report) -> None:
        self.heard.note(report)
        self.metrics.engine(report)
        for progress in report.progress:
            found = self._open.find(progress.request)
            if found is None:
                continue
            generation, output = found
            self.heard.note_request(output.stats, progress.stats)
            self.metrics.progress(output, progress, report.at)
            output.advance(progress, report.at)
            if output.finish is not None:
                self._forget(output)
            generation.notify(output)

    def on_refused(self, requests: Sequence[Request], error: Exception) -> None:
        if not isinstance(error, RequestError):
            logger.error("a request could not be added", exc_info=error)
        for request in requests:
            found = self._open.find(request)
            if found is not None:
                generation, output = found
                self._forget(output)
                generation.fail(to_api_error(error))

    def on_rescheduled(self, ticket: "asyncio.Future[None]", error: Exception | None) -> None:
        self._changes.settle(ticket, error)

    def on_engine_error(self, error: Exception) -> None:
        self.state, self.error = "failed", error
        answer = engine_failed(f"{type(error).__name__}: {error}")
        self._changes.fail(answer)
        for generation in self._open.take_all():
            generation.fail(answer)
