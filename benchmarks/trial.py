"""One trial of a comparison: some requests through one engine, never more than `concurrency` of them at once.

Measures seconds and counts what the steps did. Knows nothing of arms, other trials or files.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.acceptance import Acceptance
from benchmarks.metrics import Outcome
from echo_sched.closed_loop import ClosedLoop, Engine
from echo_sched.types import Request, RequestStats, StepRecord, TokenEvent


@dataclass
class Counts:
    """What the steps of a trial did. Two runs of the same arm on the same prompts should count the same."""

    num_steps: int = 0
    num_decoding_steps: int = 0  # at least one root was verified
    num_steps_without_draft: int = 0  # of those, no node was verified
    num_steps_k_max_zero: int = 0  # of those, none was allowed to be
    num_draft_levels: int = 0  # depths that were drafted, summed over steps
    num_root_steps: int = 0  # roots verified: verify steps summed over requests
    num_verified_nodes: int = 0
    num_accepted_nodes: int = 0
    num_prompt_tokens: int = 0
    num_widened: int = 0
    num_transferred: int = 0
    truncated: Counter[int] = field(default_factory=Counter)  # depth -> requests truncated before it
    deepened: Counter[int] = field(default_factory=Counter)  # depth -> nodes granted there

    def take(self, record: StepRecord) -> None:
        self.num_steps += 1
        self.num_decoding_steps += record.num_decoding > 0
        self.num_steps_k_max_zero += record.num_decoding > 0 and record.k_max == 0
        self.num_steps_without_draft += record.num_decoding > 0 and record.num_verified == 0
        self.num_draft_levels += record.num_levels
        self.num_root_steps += record.num_decoding
        self.num_verified_nodes += record.num_verified
        self.num_accepted_nodes += record.num_accepted
        self.num_prompt_tokens += record.num_prompt_tokens
        self.num_widened += record.num_widened
        self.num_transferred += record.num_transferred
        self.truncated.update(record.truncated)
        self.deepened.update(record.deepened)

    @property
    def draft_utilisation(self) -> float:
        """Accepted nodes / verified nodes; 0 where nothing was verified (`num_verified_nodes` stands beside it)."""
        return self.num_accepted_nodes / self.num_verified_nodes if self.num_verified_nodes else 0.0


@dataclass(frozen=True)
class Trial:
    """What came of it. `outputs` are the requests' token ids in the order of the requests."""

    duration: float  # seconds, prompts included, the counting of steps left out
    steady_duration: float | None  # of it, from the first request's end until a client was left without a request
    num_steady_tokens: int | None  # output tokens in that time; None, both, where there was none
    outputs: tuple[tuple[int, ...], ...]
    counts: Counts
    acceptance: Acceptance
    phase_seconds: dict[str, float]
    outcomes: tuple[Outcome, ...]  # when each request's tokens came, by the trial's clock
    stats: tuple[RequestStats, ...]

    @property
    def num_output_tokens(self) -> int:
        return sum(map(len, self.outputs))

    @property
    def output_throughput(self) -> float:
        """Tokens per second."""
        return self.num_output_tokens / self.duration

    @property
    def acceptance_length(self) -> float:
        """Tokens per verify step per request, bonus included. A request's first token comes from its prompt instead."""
        num_steps = self.counts.num_root_steps
        return (self.num_output_tokens - len(self.outputs)) / num_steps if num_steps else 1.0

    @property
    def draft_seconds_per_level(self) -> float | None:
        """All that the phase `draft` took, catching up with committed tokens included; None where nothing was drafted.

        A level counts whether its offers were granted or not.
        """
        num_levels = self.counts.num_draft_levels
        return self.phase_seconds.get("draft", 0.0) / num_levels if num_levels else None

    @property
    def verify_seconds_per_step(self) -> float:
        """Prompt chunks included. An accelerator may still be at work when the phase ends: `accept` waits for it."""
        return self.phase_seconds["verify"] / self.counts.num_steps


class Run:
    """A trial on its way: `loop` serves it, in one go or in turns with others."""

    def __init__(
        self,
        engine: Engine,
        requests: Sequence[Request],
        concurrency: int,
        on_finish: Callable[[], None] = lambda: None,
    ) -> None:
        self.loop = ClosedLoop(engine, requests, concurrency, self._take)
        self._requests = requests
        self._on_finish = on_finish
        self._counts, self._acceptance, self._phases = Counts(), Acceptance(), Counter[str]()
        self._started = dict.fromkeys((request.request_id for request in requests[:concurrency]), 0.0)
        self._times = defaultdict[str, list[float]](list)
        self._following = iter(requests[concurrency:])
        self._num_tokens = 0
        # (seconds, tokens) when the first request ended, and when the first client was left without one
        self._first_end: tuple[float, int] | None = None
        self._first_idle: tuple[float, int] | None = None

    def finished(self) -> Trial:
        """What came of it, served to the end where it has not been. Raises RequestError when a request is aborted."""
        self.loop.run()
        requests, started, times = self._requests, self._started, self._times
        steady_duration, num_steady_tokens = self._steady
        return Trial(
            self.loop.seconds,
            steady_duration,
            num_steady_tokens,
            tuple(tuple(request.output_ids) for request in requests),
            self._counts,
            self._acceptance,
            dict(self._phases),
            tuple(_outcome(request, started[request.request_id], times[request.request_id]) for request in requests),
            tuple(request.stats for request in requests),
        )

    @property
    def _steady(self) -> tuple[float, int] | tuple[None, None]:
        """Seconds and tokens between."""
        if self._first_end is None or self._first_idle is None or self._first_end == self._first_idle:
            return None, None
        return self._first_idle[0] - self._first_end[0], self._first_idle[1] - self._first_end[1]

    def _take(self, record: StepRecord, events: Sequence[TokenEvent], now: float) -> None:
        self._num_tokens += sum(len(event.token_ids) for event in events)
        for event in events:
            if event.token_ids:
                self._times[event.request.request_id].append(now)
            if event.finish is not None:
                self._on_finish()
                self._first_end = self._first_end or (now, self._num_tokens)
                if (follower := next(self._following, None)) is not None:
                    self._started[follower.request_id] = now
                else:
                    self._first_idle = self._first_idle or (now, self._num_tokens)
        self._counts.take(record)
        self._acceptance.take(record, events)
        self._phases.update(record.seconds)


def _outcome(request: Request, start: float, times: Sequence[float]) -> Outcome:
    end = times[-1] if times else start
    return Outcome("completed", start, end, tuple(times), len(request.prompt_ids), len(request.output_ids))
