"""What the engine's thread tells the event loop, as values that are nobody else's, and who listens."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from echo_sched.config import EngineConfig
from echo_sched.scheduler.live import Scheduling
from echo_sched.types import FinishReason, Request, RequestStats, SamplingParams, StepRecord, TokenEvent, TokenLogprobs


class ServedModel(NamedTuple):
    """Facts of the loaded engine that never change."""

    config: EngineConfig  # as started; see Scheduling for what may have changed since
    tokenizer: Callable[..., Any]
    model_path: str
    vocab_size: int
    max_model_len: int  # tokens of one request, prompt included
    info: dict[str, Any]
    prepare: Callable[[SamplingParams], None]  # from any thread; raises RequestError


class Progress(NamedTuple):
    """What one step gave one request. `stats` is a copy: the engine goes on writing to the original."""

    request: Request
    token_ids: tuple[int, ...]
    text: str
    finish: FinishReason | None
    stats: RequestStats
    logprobs: Sequence[TokenLogprobs] = ()
    prompt_logprobs: Sequence[TokenLogprobs] = ()

    @staticmethod
    def of(event: TokenEvent) -> "Progress":
        stats = event.request.stats
        copy = replace(stats, accepted_lengths=Counter(stats.accepted_lengths))
        return Progress(
            event.request, event.token_ids, event.text, event.finish, copy, event.logprobs, event.prompt_logprobs
        )


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
