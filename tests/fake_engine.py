"""An engine of made-up tokens, for what is built around engines: comparisons and studies."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from echo_sched.config import EngineConfig
from echo_sched.types import FinishReason, GateReading, Request, StepRecord, TokenEvent
from tests.records import step_record

NODES_PER_TREE = 3
Wrong = Callable[[str, int, int, int], bool]  # (policy, requests running, prompt, position) -> emit another token


def right(*_: Any) -> bool:
    return False


@dataclass
class FakeEngine:
    """Emits made-up tokens: the first from the prompt, then one per step, or two where nodes are verified."""

    policy: str = "off"
    wrong: Wrong = right
    running: list[Request] = field(default_factory=list)
    last_record: StepRecord | None = None
    history: list[tuple[str, int]] = field(default_factory=list)  # (policy, requests running) of every step

    def with_policy(self, config: EngineConfig) -> "FakeEngine":
        assert not self.running, "the weights are in use"
        return FakeEngine(config.policy, self.wrong, history=self.history)

    def beside(self, config: EngineConfig) -> "FakeEngine":
        return FakeEngine(config.policy, self.wrong, history=self.history)

    @property
    def has_work(self) -> bool:
        return bool(self.running)

    def add(self, request: Request) -> None:
        self.running.append(request)

    def step(self) -> list[TokenEvent]:
        load, speculated = len(self.running), self.policy != "off"
        decoding = [request for request in self.running if request.output_ids]
        self.history.append((self.policy, load))
        events = []
        for request in self.running:
            wanted = 2 if speculated and request.output_ids else 1
            new_ids = [self.token(request, load) for _ in range(min(wanted, request.num_remaining))]
            events.append(TokenEvent(request, tuple(new_ids), "", None if request.num_remaining else LENGTH))
        self.running = [request for request in self.running if request.num_remaining]
        num_nodes = NODES_PER_TREE * len(decoding) if speculated else 0
        num_emitted = sum(len(event.token_ids) for event in events)
        self.last_record = record(len(decoding), num_nodes, num_accepted=num_emitted - load, num_emitted=num_emitted)
        return events

    def token(self, request: Request, load: int) -> int:
        position = len(request.output_ids)
        token = request.prompt_ids[0] * 100 + position
        request.output_ids.append(-1 if self.wrong(self.policy, load, request.prompt_ids[0], position) else token)
        return request.output_ids[-1]


LENGTH = FinishReason("length")


def record(num_decoding: int, num_verified: int, num_accepted: int, num_emitted: int) -> StepRecord:
    return step_record(
        num_decoding=num_decoding,
        num_prompt_tokens=0 if num_decoding else 1,
        k_max=num_verified,
        num_offered=num_verified,
        num_levels=2 if num_verified else 0,
        num_verified=num_verified,
        num_accepted=num_accepted,
        num_emitted=num_emitted,
        truncated={2: 1} if num_verified else {},
        deepened={4: 2} if num_verified else {},
        num_widened=1 if num_verified else 0,
        num_transferred=2 if num_verified else 0,
        seconds={"verify": 0.25, "draft": 0.1 if num_verified else 0.0},
        gate_readings=tuple(GateReading(0, "any", depth, 0.5, False) for depth in (1, 2)) if num_verified else (),
    )
