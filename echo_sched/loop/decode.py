"""DecodeLoop: one `step()` serves every request.

One draft tree per request under the shared K_max, one packed verify forward for all trees and prompt chunks, then
acceptance. One thread calls it; streams and HTTP live elsewhere.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from echo_sched.arms import LIVE_SETTINGS
from echo_sched.config import EngineConfig
from echo_sched.engine.accept import Sampler
from echo_sched.engine.draft import Drafter
from echo_sched.engine.forward import Target
from echo_sched.engine.sampling import sample
from echo_sched.loop.drawing import draw_tokens, walks_of
from echo_sched.loop.facts import Loaded
from echo_sched.loop.forbidding import DraftFilter
from echo_sched.loop.grow import grow_trees
from echo_sched.loop.live import changed
from echo_sched.loop.load import LoadMeter
from echo_sched.loop.logprobs import add_logprobs
from echo_sched.loop.phases import PhaseClock
from echo_sched.loop.records import StepOutcome, count, step_record
from echo_sched.loop.requests import Requests, decoder
from echo_sched.loop.rows import Chunk, chunk_segment, committed_features, slot_of, tree_segment
from echo_sched.scheduler.live import LiveScheduler, Scheduling
from echo_sched.scheduler.live_cost import LiveCost
from echo_sched.scheduler.plan import AllocationReport, Feedback, Plan
from echo_sched.scheduler.policy import Policy, PolicySettings, make_policy
from echo_sched.scheduler.profile import Profile
from echo_sched.tree import DraftTree, SuperTree, pack
from echo_sched.types import Request, SamplingParams, StepRecord, TokenEvent


class DecodeLoop(Loaded):
    """Continuous batching with tree speculation. `add` requests, call `step` while `has_work`."""

    def __init__(
        self,
        config: EngineConfig,
        target: Target,
        drafter: Drafter,
        policy: Policy,
        profile: Profile,
        *,
        learned: LiveCost | None = None,
        recording: bool = False,
        sampler: Sampler = sample,
    ) -> None:
        """`learned`: what the policy learns of the machine; later policies go on from there."""
        assert config.max_batch_size <= target.kv.num_slots
        assert target.facts.max_model_len + config.k_max <= target.kv.max_len, "no room for nodes behind a full request"
        super().__init__(config, target, drafter, profile)
        self.requests = Requests(target, drafter)
        self.scheduler = LiveScheduler(
            policy, profile, explore=config.explore, adapt=config.adapt == "on", seed=config.seed
        )
        self.learned = learned
        self.recording = recording
        self.sampler = sampler
        self.last_record: StepRecord | None = None
        self._built = config
        # A loop that will never draft asks the target for nothing more than its logits. One that may asks always, so
        # that its drafter is ready whenever settings change.
        self._aux_layers = drafter.aux_layers if config.policy != "off" and config.k_max else ()
        self._num_steps = 0
        self._meter = LoadMeter()

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

    def beside(self, config: EngineConfig) -> "DecodeLoop":
        """The same with KV and a drafter of its own: both loops may be at work, in turns. Raises ConfigError."""
        from echo_sched.loop.assembly import reassemble_beside

        return reassemble_beside(self, config)

    # ---- live settings ----

    def reschedule(self, changes: Mapping[str, Any]) -> None:
        """Change scheduling settings (see live.py) from the next step on. Raises RequestError naming the setting."""
        change = changed(self._built, self.config, self.scheduler.set_thresholds, changes)
        policy = make_policy(PolicySettings.of(change.config), self.profile, self.learned)
        self.config = change.config
        self.scheduler.change(policy, change.thresholds, explore=self.config.explore, adapt=self.config.adapt == "on")

    @property
    def scheduling(self) -> Scheduling:
        """The settings that may change and what they have come to; a value of its own, for other threads to keep."""
        settings = {name: getattr(self.config, name) for name in LIVE_SETTINGS}
        return Scheduling(settings, self._built.k_max, self.scheduler.state)

    @property
    def policy(self) -> Policy:
        """The one in force."""
        return self.scheduler.policy

    # ---- requests ----

    def prepare(self, params: SamplingParams) -> None:
        """Do beforehand, in any thread, what may take `add` long: compile a grammar. Raises RequestError."""
        self.requests.prepare(params)

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestError, naming the field, when it cannot be served."""
        self.requests.add(request)

    def cancel(self, request_id: str) -> None:
        """Drop a request wherever it is; its slot is free at once. Unknown ids are ignored."""
        self.requests.cancel(request_id)

    @property
    def has_work(self) -> bool:
        return bool(self.requests.waiting or self.requests.running)

    @property
    def num_running(self) -> int:
        return len(self.requests.running)

    @property
    def num_waiting(self) -> int:
        return len(self.requests.waiting)

    def check_integrity(self) -> None:
        """Assert that the cache holds exactly what the running requests say it does."""
        self.requests.check_integrity()

    # ---- one step ----

    def step(self) -> list[TokenEvent]:
        """One verify forward for everybody. Returns what each request got; [] when there is nothing to do."""
        clock = PhaseClock()
        with clock("schedule"):
            self.requests.admit(self.config.max_batch_size)
            decoding = self.requests.decoding
            chunks = self.requests.choose_chunks(len(decoding), self.config.chunk_tokens)
            num_waiting_tokens = self.requests.num_waiting_tokens(chunks)
            load = self._meter.load(self._num_steps, decoding, chunks, num_waiting_tokens)
            plan = self.scheduler.plan(load)
        if not self.requests.running:
            return []
        trees, report, num_forbidden = self._grow(decoding, plan, clock)
        with clock("verify"):
            packed = pack([*map(tree_segment, decoding, trees), *map(chunk_segment, chunks)])
            logits, features = self.target.forward_with_features(packed, self._aux_layers)
        with clock("accept"):
            drawing, emitted, accepted = self._accept(decoding, trees, chunks, packed, logits)
        with clock("commit"):
            kept = self._commit(decoding, accepted, chunks)
        if features is not None:
            with clock("draft"):
                self.drafter.observe(*committed_features(kept, packed, features))
        outcome = StepOutcome(self._num_steps, plan, decoding, trees, chunks, accepted, emitted, report, num_forbidden)
        count(outcome)
        self._meter.note(drawing)
        num_accepted = [len(nodes) for nodes in accepted]
        # An accelerator may still be at work when the phase ends: its seconds say nothing.
        timed = self.target.device.type == "cpu"
        spent = (clock.seconds["verify"], clock.seconds["draft"] + clock.seconds["schedule"]) if timed else (None, None)
        self.scheduler.observe(load, plan, Feedback(report, num_accepted, *spent))
        self.last_record = step_record(outcome, clock.seconds, recording=self.recording)
        self._num_steps += 1
        return self.requests.take_events(drawing, emitted)

    def _grow(
        self, decoding: Sequence[Request], plan: Plan, clock: PhaseClock
    ) -> tuple[list[DraftTree], AllocationReport, int]:
        """Trees, what their allocation did, and how many offers it never saw."""
        draft_filter = DraftFilter(self.requests.grammars(decoding))
        trees, report = grow_trees(
            decoding,
            plan,
            self.drafter,
            draft_filter,
            branching=self.config.branching,
            eos_ids=self.target.facts.eos_ids,
            clock=clock,
        )
        return trees, report, draft_filter.num_forbidden

    def _accept(
        self,
        decoding: Sequence[Request],
        trees: Sequence[DraftTree],
        chunks: Sequence[Chunk],
        packed: SuperTree,
        logits: Tensor,
    ) -> tuple[list[Request], list[list[int]], list[list[int]]]:
        """Everybody who drew tokens and which, the decoding requests first; and the accepted nodes of those."""
        outputs, logit_start = self.requests.outputs, packed.logit_start.tolist()
        walks = walks_of(decoding, trees, chunks, logit_start, outputs)
        emitted, accepted = draw_tokens(walks, logits, self.sampler, outputs, self.target.facts.eos_ids)
        chunk_rows = list(zip(chunks, logit_start[len(decoding) : -1], strict=True))
        decode = decoder(self.tokenizer, skip_special_tokens=False)
        add_logprobs(walks, emitted, accepted, chunk_rows, logits, outputs, decode)
        return [request for request, _ in walks], emitted, accepted[: len(decoding)]

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
