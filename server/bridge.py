"""Where the engine's thread and the event loop meet: a bounded queue, routing of tokens, cancelling, draining, failing.

All of its state belongs to the event loop's thread; the engine's thread reaches it only through call_soon_threadsafe.
Knows nothing of HTTP beyond the errors that clients get.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from echo_sched.errors import QueueFullError, RequestError
from echo_sched.scheduler.live import Scheduling
from echo_sched.types import FinishReason, Request, StepRecord
from server.changes import PendingChanges
from server.engine_thread import EngineLoop, EngineThread
from server.errors import ApiError, engine_failed, to_api_error, unavailable
from server.generation import Generation, Output
from server.metrics import Metrics
from server.reports import Report, ServedModel
from server.settings import ServerSettings

logger = logging.getLogger("echo_sched.server")

JOIN_SECONDS = 5.0  # how long a stopping server waits for the engine's last step

State = Literal["loading", "ready", "draining", "stopped", "load_failed", "failed"]

_REFUSALS: dict[State, str] = {
    "loading": "the model is still loading",
    "draining": "the server is shutting down",
    "stopped": "the server is shutting down",
    "load_failed": "the model could not be loaded",
    "failed": "the engine has failed and the server is stopping",
}


class EngineBridge:
    """One engine for one app. `start` it in a running event loop and `close` it there."""

    def __init__(self, load: Callable[[], EngineLoop], settings: ServerSettings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.state: State = "loading"
        self.error: Exception | None = None  # why the state is load_failed or failed
        self.report = Report(0, 0)  # the engine as last heard of
        self.last_record: StepRecord | None = None
        self.scheduling: Scheduling | None = None  # None before the model is loaded
        self._load = load
        self._model: ServedModel | None = None
        self._open: dict[str, tuple[Generation, Output]] = {}
        self._changes = PendingChanges()
        self._num_verify_steps = 0  # summed over requests
        self._num_emitted = 0  # by those steps

    # -- facts --

    @property
    def ended(self) -> bool:
        """Nothing will be served any more: it is time for the process to exit."""
        return self.state in ("stopped", "load_failed", "failed")

    @property
    def stalled(self) -> bool:
        since = self._thread.stepping_since
        return since is not None and time.monotonic() - since > self.settings.stall_timeout

    @property
    def model(self) -> ServedModel:
        """The loaded model. Raises ApiError 503 before there is one."""
        if self._model is None:
            raise unavailable(_REFUSALS[self.state], code=self.state)
        return self._model

    @property
    def acceptance_length(self) -> float:
        """Tokens per verify step and request since the start, bonus included."""
        return self._num_emitted / self._num_verify_steps if self._num_verify_steps else 1.0

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
            raise unavailable(_REFUSALS[self.state], code=self.state)
        self._check_queue(len(requests))
        self._check_names(requests)
        generation = Generation(requests, time.monotonic())
        self._open.update({output.request.request_id: (generation, output) for output in generation.outputs})
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
        found = [(generation, output) for generation, output in self._open.values() if rid in _names(output.request)]
        for generation, output in found:
            self._abort_output(generation, output, reason)
        return bool(found)

    async def reschedule(self, changes: Mapping[str, Any]) -> None:
        """Change scheduling settings; returns once they are in force.

        Raises RequestError for what cannot be, ApiError (503) when the engine does not run.
        """
        if self.state not in ("ready", "draining"):
            raise unavailable(_REFUSALS[self.state], code=self.state)
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
        for generation, output in list(self._open.values()):
            self._abort_output(generation, output, reason)

    def _check_queue(self, num_new: int) -> None:
        if len(self._open) + num_new > self.max_sequences:
            raise QueueFullError(
                f"the queue is full: {len(self._open)} requests are running or waiting; try again later"
            )

    def _check_names(self, requests: Sequence[Request]) -> None:
        taken = {name for _, output in self._open.values() for name in _names(output.request)}
        for request in requests:
            for name in _names(request) & taken:
                raise RequestError(f"rid {name!r} is in use by a request that has not ended", "rid")

    def _find(self, request: Request) -> tuple[Generation, Output] | None:
        """None for a request that was aborted while the engine's report was under way, even if its id is taken anew."""
        found = self._open.get(request.request_id)
        return found if found is not None and found[1].request is request else None

    def _forget(self, output: Output) -> None:
        del self._open[output.request.request_id]
        if output.finish is not None:
            self.metrics.finished(output.finish.type, output.updated_at - output.arrived_at)
        self._stop_if_drained()

    def _stop_if_drained(self) -> None:
        if self.state == "draining" and not self._open:
            self._stop()

    def _stop(self) -> None:
        self.state = "stopped"
        self._thread.stop()
        self._changes.fail(unavailable(_REFUSALS["stopped"], code="stopped"))

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
        self.report = report
        self.metrics.engine(report)
        if report.record is not None:
            self.last_record = report.record
        if report.scheduling is not None:
            self.scheduling = report.scheduling
        for progress in report.progress:
            found = self._find(progress.request)
            if found is None:
                continue
            generation, output = found
            self._num_verify_steps += progress.stats.num_verify_steps - output.stats.num_verify_steps
            self._num_emitted += progress.stats.num_emitted - output.stats.num_emitted
            self.metrics.progress(output, progress, report.at)
            output.advance(progress, report.at)
            if output.finish is not None:
                self._forget(output)
            generation.notify(output)

    def on_refused(self, requests: Sequence[Request], error: Exception) -> None:
        if not isinstance(error, RequestError):
            logger.error("a request could not be added", exc_info=error)
        for request in requests:
            found = self._find(request)
            if found is not None:
                generation, output = found
                self._forget(output)
                generation.fail(to_api_error(error))

    def on_rescheduled(self, ticket: "asyncio.Future[None]", error: Exception | None) -> None:
        self._changes.settle(ticket, error)

    def on_engine_error(self, error: Exception) -> None:
        self.state, self.error = "failed", error
        answer: ApiError = engine_failed(f"{type(error).__name__}: {error}")
        self._changes.fail(answer)
        generations = {id(generation): generation for generation, _ in self._open.values()}
        self._open.clear()
        for generation in generations.values():
            generation.fail(answer)


def _names(request: Request) -> set[str]:
    """What a client may call a request."""
    return {request.request_id} if request.group is None else {request.request_id, request.group}
