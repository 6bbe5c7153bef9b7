"""What drafting takes, timed on a loop that takes exactly as long as it was told to."""

from typing import Any

import pytest

from echo_sched.config import EngineConfig
from echo_sched.loop.drafting_cost import PROMPT_LEN, measure_drafting
from echo_sched.types import Request, StepRecord
from tests.records import step_record

START, LEVEL, PAIR, HOST = 0.5, 0.25, 0.125, 0.0625  # seconds; a step that drafts takes HOST more outside `draft` too


class TimedLoop:
    """One step of prompts, then steps that emit a token per request; nothing that is drafted is accepted."""

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        self.config, self.max_model_len, self.vocab_size = config, max_model_len, 50
        self.last_record: StepRecord | None = None
        self.requests: list[Request] = []
        self._num_unfed = 0

    def with_policy(self, config: EngineConfig) -> "TimedLoop":
        return TimedLoop(config, self.max_model_len)

    def add(self, request: Request) -> None:
        self.requests.append(request)

    def cancel(self, request_id: str) -> None:
        self.requests = [request for request in self.requests if request.request_id != request_id]

    @property
    def has_work(self) -> bool:
        return any(request.num_remaining for request in self.requests)

    def step(self) -> None:
        size, first = len(self.requests), not self.requests[0].output_ids
        for request in self.requests:
            request.output_ids.append(0)
        if first:
            self._num_unfed = sum(len(request.prompt_ids) for request in self.requests)
            self.last_record = step_record(num_prompt_tokens=self._num_unfed)
            return
        levels = 0 if self.config.policy == "off" else self.config.max_depth
        draft = START + LEVEL * levels + PAIR * self._num_unfed if levels else 0.0
        host = {"schedule": 1.0 + (HOST if levels else 0.0), "accept": 0.0, "commit": 0.0}
        self.last_record = step_record(
            num_decoding=size, num_levels=levels, num_emitted=size, seconds={"draft": draft, **host}
        )
        self._num_unfed = size if levels else self._num_unfed + size


@pytest.mark.parametrize("max_model_len", [512, 2 * PROMPT_LEN - 16])
def test_start_level_and_feeding_are_told_apart(max_model_len: int) -> None:
    """In a context too short for whole prompts as well: what was fed is counted, not assumed."""
    loop: Any = TimedLoop(EngineConfig(max_batch_size=4, k_max=8), max_model_len)
    found = measure_drafting(loop)
    assert found.num_requests == (1, 4)
    assert found.start_seconds == pytest.approx((START + HOST,) * 2)
    assert found.level_seconds == pytest.approx((LEVEL,) * 2)
    assert found.pair_seconds == pytest.approx(PAIR)
