"""A loop under everything that clients and settings may do to it, as a machine for Hypothesis.

Requests of random fields come (alone or as siblings), are refused, go and finish under one random set of scheduling
settings; every finished request is compared with the slow twin, and after every step nothing may have leaked.
"""

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from echo_sched.engine.draft import Drafter
from echo_sched.engine.draft.eagle3.opening import open_eagle3
from echo_sched.engine.draft.merge import MergeDrafter
from echo_sched.engine.draft.ngram import NGramDrafter
from echo_sched.engine.forward import Target
from echo_sched.engine.reference import ReferenceResult, reference_decode
from echo_sched.errors import RequestError
from echo_sched.types import Request
from tests.counts import Counts
from tests.fakes import ScriptedDrafter
from tests.loops import EOS_ID, STAIRS, tiny_loop, tiny_target
from tests.proof.random_requests import random_request, siblings
from tests.test_exactness import POLICIES
from tests.tiny_drafts import RELATED, lm_drafter
from tests.tiny_models import VOCAB_SIZE, decode, tiny_model

MAX_MODEL_LEN = 96
NUM_SLOTS = 4
DRAFTERS = ("scripted",) * 4 + ("scripted+ngram", "ngram", "lm", "eagle3", "eagle3+scripted")
SETTINGS: dict[str, tuple[Any, ...]] = {
    "k_max": (60, 60, 24, 24, 200, 8, 3, 1, 0),
    "max_depth": (6, 6, 6, 4, 1),
    "branching": (4, 4, 2, 1, 9),
    "max_batch_size": tuple(range(1, NUM_SLOTS + 1)),
    "chunk_tokens": (7, 1, 2, 40),
    "price": ("on", "off"),
    "cost": (None, STAIRS),
}
GENEROUS: dict[str, Any] = {"k_max": 200, "max_depth": 6, "branching": 4, "chunk_tokens": 40, "price": "off"}
CHANCE = st.randoms(use_true_random=True)  # spread evenly, which Hypothesis's own choices are not


class Serving(RuleBasedStateMachine):
    """`head` is the folder of a draft head for the tiny target."""

    def __init__(self, counts: Counts, head: Path) -> None:
        super().__init__()
        self.counts = counts
        self.head = head
        self.going: dict[str, Request] = {}  # waiting or running
        self.expected: dict[str, ReferenceResult] = {}
        self.script: dict[str, list[int]] = {}  # what a scripted drafter knows
        self.text: dict[str, str] = {}

    @initialize(chance=CHANCE)
    def open(self, chance: random.Random) -> None:
        family = chance.choice(("llama", "llama", "gemma3", "gpt2"))
        settings = {name: chance.choice(values) for name, values in SETTINGS.items()}
        drafter, policy, signal = chance.choice(DRAFTERS), chance.choice(sorted(POLICIES)), chance.random() < 0.7
        if chance.random() < 0.4:  # long accepted runs are rare elsewhere
            settings, drafter = settings | GENEROUS, "scripted"
        self.model = tiny_model(family)
        target = tiny_target(family, num_slots=NUM_SLOTS, max_model_len=MAX_MODEL_LEN)
        self.drafter = self._drafter(drafter, target, signal=signal)
        self.loop = tiny_loop(target, self.drafter, **settings | POLICIES[policy])
        self.loop.recording = True
        self.counts.named["settings"] += 1

    def _drafter(self, names: str, target: Target, *, signal: bool) -> Drafter:
        make: dict[str, Any] = {
            "scripted": lambda: ScriptedDrafter(self.script, (0.9,), VOCAB_SIZE, max_children=9, signal=signal),
            "ngram": NGramDrafter,
            "lm": lambda: lm_drafter(noise=RELATED, num_slots=NUM_SLOTS, max_len=MAX_MODEL_LEN),
            "eagle3": lambda: open_eagle3(self.head, target),
        }
        self.parts: list[Drafter] = [make[name]() for name in names.split("+")]
        return self.parts[0] if len(self.parts) == 1 else MergeDrafter(self.parts)

    # ---- what may happen ----

    def _free_name(self) -> str:
        """Names of requests that are gone come again."""
        return next(name for number in range(1000) if (name := f"r{number}") not in self.going)

    def _add(self, request: Request) -> None:
        params = request.params
        result = reference_decode(self.model, request.prompt_ids, params, (EOS_ID,), decode=decode)
        name = request.request_id
        self.going[name], self.expected[name], self.text[name] = request, result, ""
        self.script[name] = result.output_ids
        self.loop.add(request)
        full = len(request.prompt_ids) + params.max_new_tokens == MAX_MODEL_LEN
        self.counts.named.update({"up to the context": int(full), "of one token": int(params.max_new_tokens == 1)})

    @rule(chance=CHANCE)
    def arrive(self, chance: random.Random) -> None:
        self._add(random_request(chance, self._free_name(), max_model_len=MAX_MODEL_LEN))

    @rule(chance=CHANCE, count=st.integers(1, 3))
    def arrive_with_siblings(self, chance: random.Random, count: int) -> None:
        first = random_request(chance, self._free_name(), max_model_len=MAX_MODEL_LEN)
        self._add(first)
        for _ in range(count):
            self._add(siblings(first, [self._free_name()])[0])
        self.counts.named["siblings"] += count

    @precondition(lambda self: self.going)
    @rule(which=st.integers(0, 100))
    def cancel(self, which: int) -> None:
        request = list(self.going.values())[which % len(self.going)]
        phase = "waiting" if request.waiting else "in its prompt" if request.prefilling else "decoding"
        self.counts.named[f"cancelled {phase}"] += 1
        self.loop.cancel(request.request_id)
        assert request.slot is None
        del self.going[request.request_id]

    @precondition(lambda self: self.going)
    @rule(which=st.integers(0, 100))
    def refuse(self, which: int) -> None:
        """An id in use, or one token more than the context has: refused, and nothing happened."""
        known = list(self.going)[which % len(self.going)]
        params = self.going[known].params
        too_long = (1,) * (MAX_MODEL_LEN + 1 - params.max_new_tokens)
        for request, field in ((Request(known, (1,), params), "rid"), (Request("new", too_long, params), None)):
            with pytest.raises(RequestError) as caught:
                self.loop.add(request)
            assert caught.value.param == (field or "max_new_tokens")

    @rule(count=st.integers(1, 8))
    def step(self, count: int) -> None:
        for _ in range(count):
            self._step()

    @precondition(lambda self: len(self.going) > 5)
    @rule()
    def drain(self) -> None:
        while self.loop.has_work:
            self._step()

    # ---- what must hold ----

    def _step(self) -> None:
        loop = self.loop
        due = min(loop.num_running + loop.num_waiting, loop.config.max_batch_size)
        owed = [name for name, request in self.going.items() if request.decoding]
        depths = {name: request.num_remaining - 1 for name, request in self.going.items()}
        events = loop.step()
        if not due:
            assert not events
            return
        self.counts.take_step(loop, events)
        record = loop.last_record
        assert record is not None and record.num_verified <= record.k_max <= loop.config.k_max
        finished = [event.request for event in events if event.finish is not None]
        assert loop.num_running + len(finished) == due, "a slot was free while a request waited"
        emitting = {event.request.request_id for event in events if event.token_ids}
        assert emitting.issuperset(owed), "a decoding request got nothing"
        assert all(node.depth <= depths[node.request_id] for node in record.node_readings), "drafts beyond its end"
        for event in events:
            self.text[event.request.request_id] += event.text
            wants_logprobs = event.request.logprobs is not None
            assert len(event.logprobs) == (len(event.token_ids) if wants_logprobs else 0)
        for request in finished:
            self._check(request)

    def _check(self, request: Request) -> None:
        name = request.request_id
        self.counts.compare(self.going.pop(name), self.expected[name])
        assert decode(request.output_ids).startswith(self.text[name])

    @invariant()
    def nothing_leaks(self) -> None:
        if not hasattr(self, "loop"):
            return
        self.loop.check_integrity()
        if not self.loop.has_work:
            caches = [self.loop.target.kv, *(part.kv for part in self.parts if hasattr(part, "kv"))]
            assert all(kv.num_free == kv.num_slots for kv in caches), "an idle engine holds slots"

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.drain()
            self.nothing_leaks()
            assert not self.going, "requests that nobody finished"
