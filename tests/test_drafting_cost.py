"""What drafting takes, timed on a loop that takes exactly as long as it was told to."""

from typing import Any

import pytest

from echo_sched.config import EngineConfig
from echo_sched.loop.drafting_cost import CHAIN, PROMPT_LEN, measure_drafting
from echo_sched.scheduler.plan import Load
from echo_sched.scheduler.policy import Policy
from echo_sched.types import Request, StepRecord
from tests.records import step_record

PAIR = 0.125  # seconds
HOST = 0.0625  # what a step that drafts takes more outside `draft`, and each further level
INTERRUPTED = 5.0


def start(size: int) -> float:
    return 0.5 + size / 64


def level(size: int) -> float:
    return 0.25 + size / 128


class TimedLoop:
    """One step of prompts, then steps that emit a token per request; nothing that is drafted is accepted.

    The first step under another policy is interrupted.
    """

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        self.config, self.max_model_len, self.vocab_size = config, max_model_len, 50
        self.scheduler = self
        self.last_record: StepRecord | None = None
        self.requests: list[Request] = []
        self._policy: Policy | None = None
        self._num_unfed = 0
        self._interrupted = False

    def with_policy(self, config: EngineConfig) -> "TimedLoop":
        return TimedLoop(config, self.max_model_len)

    def change(self, policy: Policy, thresholds: object, *, explore: float, adapt: bool) -> None:
        self._policy, self._interrupted = policy, self._policy is not None

    def add(self, request: Request) -> None:
        self.requests.append(request)

    def cancel(self, request_id: str) -> None:
        self.requests = [request for request in self.requests if request.request_id != request_id]

    def step(self) -> None:
        running = [request for request in self.requests if request.num_remaining]
        size, first = len(running), not self.requests[0].output_ids
        for request in running:
            request.output_ids.append(0)
        if first:
            self._num_unfed = sum(len(request.prompt_ids) for request in running)
            seconds = dict.fromkeys(("draft", "schedule", "accept", "commit"), 9.0)
            self.last_record = step_record(num_prompt_tokens=self._num_unfed, seconds=seconds)
            return
        assert self._policy is not None
        plan = self._policy.plan(Load(size, 0))
        levels = 0 if plan.k_max == 0 else plan.max_depth
        draft, schedule = 0.0, 1.0 + (INTERRUPTED if self._interrupted else 0.0)
        if levels:
            draft = start(size) + (levels - 1) * level(size) + PAIR * self._num_unfed
            schedule += levels * HOST
        self._interrupted = False
        self._num_unfed = size if levels else self._num_unfed + size
        seconds = {"draft": draft, "schedule": schedule, "accept": 0.0, "commit": 0.0}
        self.last_record = step_record(num_decoding=size, num_levels=levels, seconds=seconds)


@pytest.mark.parametrize("max_model_len", [512, PROMPT_LEN])
def test_start_level_and_feeding_are_told_apart(max_model_len: int) -> None:
    """In a context too short for whole prompts as well: what was fed is counted, not assumed."""
    loop: Any = TimedLoop(EngineConfig(max_batch_size=16, k_max=8 * CHAIN), max_model_len)
    found = measure_drafting(loop)
    assert found.num_requests == (1, 4, 8, 16)
    assert found.start_seconds == pytest.approx([start(size) + HOST for size in found.num_requests])
    assert found.num_nodes == (1, 4, 8)  # K_max is too small for chains of sixteen requests
    assert found.level_seconds == pytest.approx([level(size) + HOST for size in found.num_nodes])
    assert found.pair_seconds == pytest.approx(PAIR)


@pytest.mark.parametrize("k_max", [0, 1, CHAIN - 1])
def test_a_k_max_without_room_for_long_chains_is_timed_as_far_as_it_goes(k_max: int) -> None:
    loop: Any = TimedLoop(EngineConfig(max_batch_size=4, k_max=k_max), 512)
    found = measure_drafting(loop)
    assert found.start(4) == (pytest.approx(start(4) + HOST) if k_max else 0.0)
    assert found.levels([1]).tolist() == [found.start(1)]
