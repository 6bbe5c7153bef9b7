"""DecodeLoop: one `step()` serves every request.

One draft tree per request under the shared K_max, one packed verify forward for all trees and prompt chunks, then
acceptance. One thread calls it; streams and HTTP live elsewhere.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from echo_sched.arms import LIVE_SETTINGS
from echo_sched.config import EngineConfig
from echo_sched.engine.accept import Sampler
from echo_sched.engine.draft import Drafter
from echo_sched.engine.forward import Target
from echo_sched.engine.measure import CostCurve, device_facts, measure_cost
from echo_sched.engine.sampling import sample
from echo_sched.errors import RequestError
from echo_sched.loop.drawing import draw_tokens, walks_of
from echo_sched.loop.emission import Output, begin_output, take_event
from echo_sched.loop.facts import describe
from echo_sched.loop.grow import grow_trees
from echo_sched.loop.intake import check_request
from echo_sched.loop.live import changed
from echo_sched.loop.logprobs import add_logprobs, first_prompt_logprobs
from echo_sched.loop.phases import PhaseClock
from echo_sched.loop.records import StepOutcome, count, step_record
from echo_sched.loop.rows import Chunk, chunk_segment, committed_features, slot_of, tree_segment
from echo_sched.scheduler.admission import chunk_sizes, num_admitted
from echo_sched.scheduler.live import LiveScheduler, Scheduling
from echo_sched.scheduler.plan import Load
from echo_sched.scheduler.policy import Policy, PolicySettings, make_policy
from echo_sched.scheduler.profile import Identity, Profile
from echo_sched.tree import Segment, pack
from echo_sched.types import Request, StepRecord, TokenEvent

SCORE_CHUNK = 512  # tokens per forward when a whole sequence is scored


class DecodeLoop:
    """Continuous batching with tree speculation. `add` requests, call `step` while `has_work`."""

    def __init__(
        self,
        config: EngineConfig,
        target: Target,
        drafter: Drafter,
        policy: Policy,
        profile: Profile,
        *,
        recording: bool = False,
        sampler: Sampler = sample,
    ) -> None:
        assert config.max_batch_size <= target.kv.num_slots
        assert target.facts.max_model_len + config.k_max <= target.kv.max_len, "no room for nodes behind a full request"
        self.config = config
        self.target = target
        self.drafter = drafter
        self.profile = profile
        self.scheduler = LiveScheduler(
            policy, profile, explore=config.explore, adapt=config.adapt == "on", seed=config.seed
        )
        self.last_record: StepRecord | None = None
        self._built = config
        # A loop that will never draft asks the target for nothing more than its logits. One that may asks always, so
        # that its drafter is ready whenever settings change.
        self._aux_layers = drafter.aux_layers if config.policy != "off" and config.k_max else ()
        self.recording = recording
        self.sampler = sampler
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []  # in arrival order
        self._outputs: dict[str, Output] = {}
        self._num_steps = 0

    @classmethod
    def from_config(cls, config: EngineConfig, *, recording: bool = False) -> "DecodeLoop":
        """Load everything a config names. Raises ConfigError, ModelError or ProfileError."""
        from echo_sched.loop.assembly import assemble

        return assemble(config, recording=recording)

    def with_policy(self, config: EngineConfig) -> "DecodeLoop":
        """A loop with other scheduling settings on the same target, which must be idle. Raises ConfigError."""
        from echo_sched.loop.assembly import reassemble

        assert not self.has_work, "the target is in use"
        return reassemble(self, config)

    # ---- facts ----

    @property
    def tokenizer(self) -> Any:
        return self.target.tokenizer

    @property
    def model_path(self) -> str:
        return self.target.facts.path

    @property
    def vocab_size(self) -> int:
        return self.target.facts.vocab_size

    @property
    def max_model_len(self) -> int:
        return self.target.facts.max_model_len

    @property
    def policy(self) -> Policy:
        """The one in force."""
        return self.scheduler.policy

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def model_identity(self) -> Identity:
        return Identity(self.config.model, self.target.facts.fingerprint)

    @property
    def drafter_identity(self) -> Identity:
        return Identity(self.drafter.name, self.drafter.fingerprint)

    @property
    def machine_facts(self) -> dict[str, Any]:
        """What measured seconds depend on, as far as torch knows."""
        return device_facts(self.target.device)

    def check_integrity(self) -> None:
        """Assert that the cache holds exactly what the running requests say it does."""
        self.target.kv.check_integrity({r.slot: r.num_computed for r in self._running if r.slot is not None})
        assert set(self._outputs) == {r.request_id for r in (*self._running, *self._waiting)}

    def info(self) -> dict[str, Any]:
        """JSON-able facts about what is running."""
        return describe(self.config, self.target, self.profile)

    # ---- live settings ----

    def reschedule(self, changes: Mapping[str, Any]) -> None:
        """Change scheduling settings (see live.py) from the next step on. Raises RequestError naming the setting."""
        change = changed(self._built, self.config, self.scheduler.set_thresholds, changes)
        policy = make_policy(PolicySettings.of(change.config), self.profile)
        self.config = change.config
        self.scheduler.change(policy, change.thresholds, explore=self.config.explore, adapt=self.config.adapt == "on")

    @property
    def scheduling(self) -> Scheduling:
        """The settings that may change and what they have come to; a value of its own, for other threads to keep."""
        settings = {name: getattr(self.config, name) for name in LIVE_SETTINGS}
        return Scheduling(settings, self._built.k_max, self.scheduler.state)

    # ---- requests ----

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestError, naming the field, when it cannot be served."""
        eos_ids = self.target.facts.eos_ids
        check_request(request, self.vocab_size, self.max_model_len, eos_ids)
        if request.request_id in self._outputs:
            raise RequestError(f"request id {request.request_id!r} is in use", "rid")
        decode = self._decoder(request.params.skip_special_tokens)
        output = self._outputs[request.request_id] = begin_output(request, decode, eos_ids)
        output.prompt_logprobs.extend(first_prompt_logprobs(request, self._decoder(False)))
        self._waiting.append(request)

    def cancel(self, request_id: str) -> None:
        """Drop a request wherever it is; its slot is free at once. Unknown ids are ignored."""
        for request in [r for r in (*self._waiting, *self._running) if r.request_id == request_id]:
            self._release(request)

    def _release(self, request: Request) -> None:
        if request.slot is None:
            self._waiting.remove(request)
        else:
            self._running.remove(request)
            self.drafter.release(request)
            if request.finish is not None and request.finish.type == "abort":
                self.target.kv.clear(request.slot)
            self.target.kv.free(request.slot)
            request.slot = None
        del self._outputs[request.request_id]

    # ---- one step ----

    def step(self) -> list[TokenEvent]:
        """One verify forward for everybody. Returns what each request got; [] when there is nothing to do."""
        clock = PhaseClock()
        with clock("schedule"):
            self._admit()
            decoding = [request for request in self._running if request.decoding]
            chunks = self._choose_chunks(len(decoding))
            load = self._load(decoding, chunks)
            plan = self.scheduler.plan(load)
        if not self._running:
            return []
        trees, report = grow_trees(
            decoding,
            plan,
            self.drafter,
            branching=self.config.branching,
            eos_ids=self.target.facts.eos_ids,
            clock=clock,
        )
        with clock("verify"):
            packed = pack([*map(tree_segment, decoding, trees), *map(chunk_segment, chunks)])
            logits, features = self.target.forward_with_features(packed, self._aux_layers)
        with clock("accept"):
            logit_start = packed.logit_start.tolist()
            walks = walks_of(decoding, trees, chunks, logit_start, self._outputs)
            emitted, accepted = draw_tokens(walks, logits, self.sampler, self._outputs, self.target.facts.eos_ids)
            chunk_rows = list(zip(chunks, logit_start[len(decoding) : -1], strict=True))
            add_logprobs(walks, emitted, accepted, chunk_rows, logits, self._outputs, self._decoder(False))
        with clock("commit"):
            kept = self._commit(decoding, accepted[: len(decoding)], chunks)
        if features is not None:
            with clock("draft"):
                self.drafter.observe(*committed_features(kept, packed, features))
        outcome = StepOutcome(
            self._num_steps, plan, decoding, trees, chunks, accepted[: len(decoding)], emitted, report
        )
        count(outcome)
        self.scheduler.observe(load, plan, report, [len(nodes) for nodes in outcome.accepted])
        self.last_record = step_record(outcome, clock.seconds, recording=self.recording)
        self._num_steps += 1
        return self._events([request for request, _ in walks], emitted)

    def _load(self, decoding: Sequence[Request], chunks: Sequence[Chunk]) -> Load:
        cached = sum(request.num_computed for request in (*decoding, *(chunk.request for chunk in chunks)))
        return Load(len(decoding), self._num_steps, sum(chunk.size for chunk in chunks), cached)

    def _admit(self) -> None:
        free = min(self.target.kv.num_free, self.config.max_batch_size - len(self._running))
        for _ in range(num_admitted(len(self._waiting), free)):
            request = self._waiting.popleft()
            request.slot = self.target.kv.allocate()
            self._running.append(request)
            self.drafter.begin(request)

    def _choose_chunks(self, num_decoding: int) -> list[Chunk]:
        prefilling = [request for request in self._running if request.prefilling]
        remaining = [len(request.prompt_ids) - request.num_computed for request in prefilling]
        sizes = chunk_sizes(remaining, num_decoding, self.config.chunk_tokens)
        return [Chunk(request, size) for request, size in zip(prefilling, sizes, strict=True) if size]

    def _commit(
        self, decoding: Sequence[Request], accepted: Sequence[Sequence[int]], chunks: Sequence[Chunk]
    ) -> list[tuple[Request, list[int]]]:
        """Keep the KV of roots, accepted nodes and prompt chunks; the rest of the step's rows is dropped.

        Returns the rows that stay, as offsets in each segment of the step.
        """
        kept = [(r, [0, *(node + 1 for node in nodes)]) for r, nodes in zip(decoding, accepted, strict=True)]
        kept += [(chunk.request, list(range(chunk.size))) for chunk in chunks]
        self.target.kv.commit([(slot_of(request), rows) for request, rows in kept])
        for request, rows in kept:
            request.num_computed += len(rows)
        return kept

    def _events(self, requests: Sequence[Request], emitted: Sequence[Sequence[int]]) -> list[TokenEvent]:
        """What the streams are told; finished requests leave."""
        events = []
        for request, tokens in zip(requests, emitted, strict=True):
            events.append(take_event(request, tokens, self._outputs[request.request_id]))
            if request.finish is not None:
                self._release(request)
        return events

    # ---- beside serving ----

    def score(self, token_ids: Sequence[int]) -> Tensor:
        """Logits [vocab] of the token after `token_ids`, plainly computed. The loop must be idle."""
        assert 0 < len(token_ids) <= self.target.kv.max_len and not self.has_work
        slot = self.target.kv.allocate()
        try:
            for start in range(0, len(token_ids), SCORE_CHUNK):
                chunk = token_ids[start : start + SCORE_CHUNK]
                logits = self.target.forward(pack([Segment(slot, start, chunk, range(-1, len(chunk) - 1), 1)]))
                self.target.kv.commit([(slot, range(len(chunk)))])
        finally:
            self.target.kv.free(slot)
        return logits[-1]

    def measure_cost(self, **shape: Any) -> CostCurve:
        """Seconds of a packed forward by rows and cached tokens, on the idle target (see engine/measure.py)."""
        assert not self.has_work
        return measure_cost(self.target, max_model_len=self.max_model_len, **shape)

    def _decoder(self, skip_special_tokens: bool) -> Callable[[Sequence[int]], str]:
        return partial(
            self.tokenizer.decode, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
