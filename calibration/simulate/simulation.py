"""Serves a trace's requests without a model: the real policy and the real allocation, with a cost table for a clock.

Closed loop, as `bench compare` runs: a request that ends is followed by the next at once. A step is that of
loop/decode.py without its tensors: admit, choose prompt chunks, plan, grow, accept, emit; it takes
T(B + P + K, C) and the overhead of a plain step, and where it drafts also its start, its levels, and feeding what those
who draft committed since they last did. Knows nothing of files and of what is made of the numbers.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from calibration.simulate.recorded import RecordedOffers
from calibration.simulate.replay import replay_step
from calibration.simulate.simulated import Served, SimulatedRun, SimulatedStep
from calibration.trace import TracedRequest
from echo_sched.scheduler.admission import chunk_sizes, num_admitted
from echo_sched.scheduler.cost import CostTable
from echo_sched.scheduler.plan import Feedback, Load, Plan
from echo_sched.scheduler.policy import Policy
from echo_sched.tree import IntArray


@dataclass(eq=False)
class _Request:
    """A traced request under way. Its phase follows from its counters, as in types.Request."""

    index: int
    traced: TracedRequest
    admitted_at: float
    num_computed: int = 0
    num_output: int = 0
    output_times: list[float] = field(default_factory=list)
    num_fed: int = 0  # committed tokens that the drafter knows

    @property
    def prompt_left(self) -> int:
        return self.traced.num_prompt_tokens - self.num_computed

    @property
    def done(self) -> bool:
        return self.num_output == self.traced.num_output_tokens


class Simulation:
    """One run of `num_requests` requests, the trace's in their order and again from the first, under one policy."""

    def __init__(
        self,
        recorded: RecordedOffers,
        requests: tuple[TracedRequest, ...],
        policy: Policy,
        cost: CostTable,
        *,
        concurrency: int,
        num_requests: int,
        chunk_tokens: int,
        max_children: int,
    ) -> None:
        self._recorded = recorded
        self._requests = requests
        self._policy = policy
        self._cost = cost
        self._concurrency = concurrency
        self._chunk_tokens = chunk_tokens
        self._max_children = max_children
        self._waiting = deque(index % len(requests) for index in range(num_requests))
        self._running: list[_Request] = []  # in arrival order
        self._clock = 0.0
        self._num_steps = 0
        self._served: list[Served] = []

    def run(self) -> SimulatedRun:
        """To the end of the last request."""
        steps = []
        while self._waiting or self._running:
            steps.append(self._step())
        return SimulatedRun(tuple(steps), tuple(self._served))

    def _step(self) -> SimulatedStep:
        self._admit()
        decoding = [request for request in self._running if request.num_output]
        chunks = self._chunks(len(decoding))
        load = self._load(decoding, chunks)
        plan = self._policy.plan(load)
        pools = np.array([self._recorded.pool_of(r.index, r.num_output) for r in decoding], np.int64)
        caps = _caps(plan, decoding)
        accepted, report, num_cut = replay_step(self._recorded, pools, plan, caps, self._max_children)
        num_verified = int(report.num_nodes.sum())
        drafting = [request for request, cap in zip(decoding, caps, strict=True) if cap > 0]
        num_rows = load.num_requests + load.num_prompt_tokens + num_verified
        seconds = self._cost.seconds_for(num_rows, load.num_cached_tokens)
        seconds += self._drafting_seconds(drafting, report.frontiers)
        if self._cost.overhead is not None:
            seconds += self._cost.overhead.seconds_for(len(decoding) + len(chunks))
        self._clock += seconds
        num_emitted = self._emit(decoding, accepted, chunks)
        self._policy.observe(load, Feedback(report, accepted.tolist()))
        self._num_steps += 1
        self._release()
        return SimulatedStep(
            seconds,
            plan.k_max,
            load.num_requests,
            load.num_prompt_tokens,
            report.num_levels,
            num_verified,
            int(accepted.sum()),
            num_emitted,
            num_cut,
        )

    def _drafting_seconds(self, drafting: list[_Request], frontiers: tuple[int, ...]) -> float:
        """Seconds of drafting, all requests that may draft being fed."""
        if not frontiers:
            return 0.0
        num_fed = sum(request.num_computed - request.num_fed for request in drafting)
        for request in drafting:
            request.num_fed = request.num_computed
        return self._cost.drafting.seconds(len(drafting), frontiers, num_fed)

    def _admit(self) -> None:
        for _ in range(num_admitted(len(self._waiting), self._concurrency - len(self._running))):
            index = self._waiting.popleft()
            self._running.append(_Request(index, self._requests[index], self._clock))

    def _chunks(self, num_decoding: int) -> list[tuple[_Request, int]]:
        prefilling = [request for request in self._running if not request.num_output]
        sizes = chunk_sizes([request.prompt_left for request in prefilling], num_decoding, self._chunk_tokens)
        return [(request, size) for request, size in zip(prefilling, sizes, strict=True) if size]

    def _load(self, decoding: list[_Request], chunks: list[tuple[_Request, int]]) -> Load:
        cached = sum(request.num_computed for request in (*decoding, *(request for request, _ in chunks)))
        num_prompt_tokens = sum(size for _, size in chunks)
        left = sum(request.prompt_left for request in self._running if not request.num_output)
        return Load(
            len(decoding),
            self._num_steps,
            num_prompt_tokens,
            cached,
            num_waiting_tokens=left - num_prompt_tokens,
        )

    def _emit(self, decoding: list[_Request], accepted: IntArray, chunks: list[tuple[_Request, int]]) -> int:
        """Tokens of this step: the accepted and a bonus, unless the answer ends before it; the first, from a prompt."""
        num_emitted = 0
        for request, num_accepted in zip(decoding, accepted.tolist(), strict=True):
            emitted = min(num_accepted + 1, request.traced.num_output_tokens - request.num_output)
            request.num_computed += num_accepted + 1
            request.num_output += emitted
            request.output_times.append(self._clock)
            num_emitted += emitted
        for request, size in chunks:
            request.num_computed += size
            if request.prompt_left == 0:
                request.num_output = 1
                request.output_times.append(self._clock)
                num_emitted += 1
        return num_emitted

    def _release(self) -> None:
        for request in self._running:
            if request.done:
                self._served.append(Served(request.admitted_at, tuple(request.output_times), request.num_output))
        self._running = [request for request in self._running if not request.done]


def _caps(plan: Plan, decoding: list[_Request]) -> IntArray:
    """[B] how deep each tree may grow."""
    left = np.array([request.traced.max_new_tokens - request.num_output - 1 for request in decoding], np.int64)
    lengths = np.array([request.traced.num_prompt_tokens + request.num_output for request in decoding], np.int64)
    return plan.drafting_caps(left, lengths)
