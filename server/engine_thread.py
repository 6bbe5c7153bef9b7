"""The one thread that owns a DecodeLoop: it loads the model, takes commands between steps, and reports each step.

Everything it reports travels through `post`, so the listener's methods run wherever `post` takes them. Knows nothing of
asyncio, HTTP, queues' bounds or clients.
"""

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from echo_sched.config import EngineConfig
from echo_sched.scheduler.live import Scheduling
from echo_sched.types import FinishReason, Request, RequestStats, StepRecord, TokenEvent, TokenLogprobs

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
    def add(self, request: Request) -> None: ...
    def cancel(self, request_id: str) -> None: ...
    def step(self) -> list[TokenEvent]: ...
    def info(self) -> dict[str, Any]: ...


class ServedModel(NamedTuple):
    """Facts of the loaded engine that never change."""

    config: EngineConfig  # as started; see Scheduling for what may have changed since
    tokenizer: Callable[..., Any]
    model_path: str
    vocab_size: int
    max_model_len: int  # tokens of one request, prompt included
    info: dict[str, Any]


class Progress(NamedTuple):
    """What one step gave one request. `stats` is a copy: the engine goes on writing to the original."""

    request: Request
    token_ids: tuple[int, ...]
    text: str
    finish: FinishReason | None
    stats: RequestStats
    logprobs: Sequence[TokenLogprobs] = ()
    prompt_logprobs: Sequence[TokenLogprobs] = ()


class Report(NamedTuple):
    """The engine after a step or a command."""

    num_running: int
    num_waiting: int
    progress: Sequence[Progress] = ()
    record: StepRecord | None = None  # of the step that just ran
    at: float = 0.0  # time.monotonic() at the end of that step
    queue_seconds: Sequence[float] = ()  # waits of the requests that got their slot in that step
    scheduling: Scheduling | None = None  # after a step or a change of settings


class Listener(Protocol):
    def on_ready(self, model: ServedModel) -> None: ...
    def on_load_error(self, error: Exception) -> None: ...
    def on_report(self, report: Report) -> None: ...
    def on_refused(self, requests: Sequence[Request], error: Exception) -> None: ...
    def on_rescheduled(self, ticket: Any, error: Exception | None) -> None: ...
    def on_engine_error(self, error: Exception) -> None: ...


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
                loop.config, loop.tokenizer, loop.model_path, loop.vocab_size, loop.max_model_len, loop.info()
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
            progress=[_progress(event) for event in events],
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


def _progress(event: TokenEvent) -> Progress:
    stats = event.request.stats
    copy = replace(stats, accepted_lengths=Counter(stats.accepted_lengths))
    return Progress(
        event.request, event.token_ids, event.text, event.finish, copy, event.logprobs, event.prompt_logprobs
    )
