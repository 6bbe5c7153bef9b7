"""The one thread that owns a DecodeLoop: it loads the model, takes commands between steps, and reports each step.

Everything it reports travels through `post`, so the listener's methods run wherever `post` takes them. Knows nothing of
asyncio, HTTP, queues' bounds or clients.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from echo_sched.config import EngineConfig
from echo_sched.scheduler.live import Scheduling
from echo_sched.types import Request, SamplingParams, StepRecord, TokenEvent
from server.reports import Listener, Progress, Report, ServedModel

logger = logging.getLogger("echo_sched.server")


class EngineLoop(Protocol):
    """What the server needs of echo_sched.loop.DecodeLoop."""

    @property
    def config(self) -> EngineConfig: ...
    @property
    def tokenizer(self) -> Callable[..., Any]: ...
    @property
    def model_path(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_model_len(self) -> int: ...
    @property
    def has_work(self) -> bool: ...
    @property
    def num_running(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    def last_record(self) -> StepRecord | None: ...
    @property
    def scheduling(self) -> Scheduling: ...
    def reschedule(self, changes: Mapping[str, Any]) -> None: ...
    def prepare(self, params: SamplingParams) -> None: ...
    def add(self, request: Request) -> None: ...
    def cancel(self, request_id: str) -> None: ...
    def step(self) -> list[TokenEvent]: ...
    def info(self) -> dict[str, Any]: ...


Command = Callable[[EngineLoop], None]


class EngineThread:
    """Runs `load()` and then steps the loop while there is work."""

    def __init__(self, load: Callable[[], EngineLoop], listener: Listener, post: Callable[..., Any]) -> None:
        self.stepping_since: float | None = None  # time.monotonic() at which the step under way began
        self._load = load
        self._listener = listener
        self._post_to = post
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._waiting: dict[Request, float] = {}  # requests without a slot -> arrival
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def add(self, requests: Sequence[Request], arrived_at: float) -> None:
        """Add all of `requests`, or none and report the refusal."""
        self._commands.put(lambda loop: self._add(loop, requests, arrived_at))

    def cancel(self, requests: Sequence[Request]) -> None:
        self._commands.put(lambda loop: self._cancel(loop, requests))

    def reschedule(self, changes: Mapping[str, Any], ticket: Any) -> None:
        """Change scheduling settings before the next step; the listener hears of it with `ticket`."""
        self._commands.put(lambda loop: self._reschedule(loop, changes, ticket))

    def stop(self) -> None:
        """End after the step under way. Open requests are simply left."""
        self._commands.put(None)

    def join(self, timeout: float) -> bool:
        """Whether the thread has ended within `timeout` seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            loop = self._load()
            model = ServedModel(
                loop.config,
                loop.tokenizer,
                loop.model_path,
                loop.vocab_size,
                loop.max_model_len,
                loop.info(),
                loop.prepare,
            )
            self._post_state(loop)  # before it is ready, so that there is one from then on
        except Exception as error:
            self._post(self._listener.on_load_error, error)
            return
        self._post(self._listener.on_ready, model)
        try:
            while self._take_commands(loop):
                self._step(loop)
        except Exception as error:
            logger.exception("the engine failed")
            self._post(self._listener.on_engine_error, error)

    def _take_commands(self, loop: EngineLoop) -> bool:
        """Run what is queued, waiting for more while there is nothing to step; False when it is time to stop."""
        while True:
            try:
                command = self._commands.get(block=not loop.has_work)
            except queue.Empty:
                return True
            if command is None:
                return False
            command(loop)

    def _step(self, loop: EngineLoop) -> None:
        before = loop.last_record
        started = self.stepping_since = time.monotonic()
        events = loop.step()
        self.stepping_since = None
        served = [request for request in self._waiting if not request.waiting]
        report = Report(
            num_running=loop.num_running,
            num_waiting=loop.num_waiting,
            progress=[Progress.of(event) for event in events],
            record=None if loop.last_record is before else loop.last_record,
            at=time.monotonic(),
            queue_seconds=[started - self._waiting.pop(request) for request in served],
            scheduling=loop.scheduling,
        )
        self._post(self._listener.on_report, report)

    def _add(self, loop: EngineLoop, requests: Sequence[Request], arrived_at: float) -> None:
        added: list[Request] = []
        try:
            for request in requests:
                loop.add(request)
                added.append(request)
                self._waiting[request] = arrived_at
        except Exception as error:  # one request's trouble, whatever it is, never stops the loop
            self._cancel(loop, added)
            self._post(self._listener.on_refused, requests, error)

    def _cancel(self, loop: EngineLoop, requests: Sequence[Request]) -> None:
        for request in requests:
            self._waiting.pop(request, None)
            loop.cancel(request.request_id)
        self._post(self._listener.on_report, Report(loop.num_running, loop.num_waiting))

    def _reschedule(self, loop: EngineLoop, changes: Mapping[str, Any], ticket: Any) -> None:
        try:
            loop.reschedule(changes)
        except Exception as error:  # a change that cannot be made never stops the loop
            self._post(self._listener.on_rescheduled, ticket, error)
            return
        self._post_state(loop)
        self._post(self._listener.on_rescheduled, ticket, None)

    def _post_state(self, loop: EngineLoop) -> None:
        state = Report(loop.num_running, loop.num_waiting, scheduling=loop.scheduling)
        self._post(self._listener.on_report, state)

    def _post(self, call: Callable[..., None], *args: Any) -> None:
        try:
            self._post_to(call, *args)
        except RuntimeError:  # the event loop is closed, so nobody listens any more
            logger.debug("nobody is left to hear %s", call.__name__)
