"""A scripted engine and a real HTTP server around it, for the server's tests."""

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx
import uvicorn

from echo_sched.arms import LIVE_SETTINGS
from echo_sched.config import EngineConfig
from echo_sched.errors import RequestError
from echo_sched.scheduler.drift import DepthDrift
from echo_sched.scheduler.live import LiveState, Scheduling
from echo_sched.types import FinishReason, Request, SamplingParams, StepRecord, TokenEvent
from server.app import create_app
from server.bridge import EngineBridge
from server.settings import ServerSettings
from tests.records import step_record

VOCAB_SIZE = 128
LETTERS = "abcdefghijklmnopqrstuvwxyz"
POISON = 13  # a prompt with this id breaks the engine's step
DRIFT = DepthDrift(4, 200, 0.5, 0.7, 0.6, 0.8, 0.05, 0.9, 0.85, 0.95, True)  # what the fake's gate has come to
UNWELCOME_REGEX = "("  # as is this
UNWELCOME = 14  # a prompt with this id is refused by the engine itself


class FakeLoop:
    """Emits the alphabet, two tokens per step and request, one of them an accepted draft node. Prompts are ASCII."""

    def __init__(self, slots: int = 2, pace: float = 0.001, max_model_len: int = 64) -> None:
        self.config = EngineConfig(max_batch_size=slots, max_model_len=max_model_len)
        self.model_path = "/models/fake"
        self.vocab_size, self.max_model_len = VOCAB_SIZE, max_model_len
        self.pace = pace  # seconds per step
        self.unblocked = threading.Event()  # a cleared event holds the engine inside a step
        self.unblocked.set()
        self.requests: dict[str, Request] = {}
        self.num_steps = self.num_changes = 0
        self.cancelled_at: dict[str, int] = {}  # request id -> steps done by then
        self.last_record: StepRecord | None = None

    def tokenizer(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) % VOCAB_SIZE for letter in text]}

    def prepare(self, params: SamplingParams) -> None:
        if params.regex == UNWELCOME_REGEX:
            raise RequestError("regex cannot be used: the engine does not like it", "regex")

    def add(self, request: Request) -> None:
        if UNWELCOME in request.prompt_ids:
            raise RequestError("the engine does not like this prompt", "input_ids")
        self.requests[request.request_id] = request

    def cancel(self, request_id: str) -> None:
        if self.requests.pop(request_id, None):
            self.cancelled_at[request_id] = self.num_steps

    def step(self) -> list[TokenEvent]:
        self.unblocked.wait()
        time.sleep(self.pace)
        for request in list(self.requests.values())[: self.config.max_batch_size]:
            request.slot = 0
        running = [request for request in self.requests.values() if not request.waiting]
        if any(POISON in request.prompt_ids for request in running):
            raise RuntimeError("the step broke")
        events = [self._advance(request) for request in running]
        self.num_steps += 1
        nodes = len(running)
        self.last_record = step_record(
            step=self.num_steps,
            num_decoding=nodes,
            k_max=8,
            num_offered=4 * nodes,
            num_levels=2,
            num_verified=2 * nodes,
            num_accepted=nodes,
            num_emitted=2 * nodes,
            truncated={1: 1},
            deepened={5: 1},
            num_widened=1,
            seconds={"draft": 0.001, "verify": 0.02},
            expected_accepted=0.5 * nodes,
            expected_seconds=0.01,
        )
        return events

    def _advance(self, request: Request) -> TokenEvent:
        stats, count = request.stats, len(request.output_ids)
        new = tuple((count + k) % len(LETTERS) for k in range(min(2, request.num_remaining)))
        request.output_ids.extend(new)
        stats.num_verify_steps += 1
        stats.num_emitted += len(new)
        stats.num_verified += 2
        stats.num_accepted += 1
        stats.accepted_lengths[1] += 1
        if request.num_remaining == 0:
            request.finish = FinishReason("length")
            del self.requests[request.request_id]
        return TokenEvent(request, new, "".join(LETTERS[i] for i in new), request.finish)

    @property
    def has_work(self) -> bool:
        return bool(self.requests)

    @property
    def num_running(self) -> int:
        return sum(not request.waiting for request in self.requests.values())

    @property
    def num_waiting(self) -> int:
        return len(self.requests) - self.num_running

    @property
    def scheduling(self) -> Scheduling:
        settings = {name: getattr(self.config, name) for name in LIVE_SETTINGS}
        state = LiveState("echo", {4: 0.12}, {}, self.num_steps, 1, 2, self.num_changes, 0, (DRIFT,), {1: -0.25})
        return Scheduling(settings, 32, state)

    def reschedule(self, changes: Mapping[str, Any]) -> None:
        if changes.get("k_max", 0) > 32:
            raise RequestError("k_max is too much", "k_max")
        if "broken" in changes:
            raise ArithmeticError("planted")
        self.num_changes += 1
        self.config = self.config.model_copy(update=dict(changes))

    def info(self) -> dict[str, Any]:
        return {"torch": "2.13.0", "device": "cpu", "profile": {"name": "built-in"}, "kv_slots": 2}


class Running(NamedTuple):
    """A server under test."""

    client: httpx.Client
    loop: FakeLoop
    bridge: EngineBridge
    url: str


@contextmanager
def serving(loop: FakeLoop | None = None, *, load: Any = None, wait: bool = True, **settings: Any) -> Iterator[Running]:
    """A server in a thread on a free port of the loopback; `load` replaces the instant load of `loop`."""
    loop = loop or FakeLoop()
    bridge = EngineBridge(load or (lambda: loop), ServerSettings(**settings))
    server = uvicorn.Server(
        uvicorn.Config(create_app(bridge), lifespan="on", log_config=None, timeout_graceful_shutdown=2)
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            until(lambda: server.started and (not wait or bridge.state == "ready"))
            with httpx.Client(base_url=url, timeout=10) as client:
                yield Running(client, loop, bridge, url)
        finally:
            loop.unblocked.set()
            server.should_exit = True
            thread.join()


def until(condition: Any, seconds: float = 10.0) -> None:
    """Wait until `condition()` holds; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)
