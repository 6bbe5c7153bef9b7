"""The requests of a loop: who waits, who runs, and what each has been given.

First come, first served. A request has a slot of the target's cache and a place with the drafter from its admission to
its end. Knows no tree and no plan.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from echo_sched.engine.draft import Drafter
from echo_sched.engine.forward import Target
from echo_sched.engine.grammar import Grammar, Grammars
from echo_sched.errors import RequestError
from echo_sched.loop.emission import Output, begin_output, take_event
from echo_sched.loop.intake import check_request
from echo_sched.loop.logprobs import first_prompt_logprobs
from echo_sched.loop.rows import Chunk
from echo_sched.scheduler.admission import chunk_sizes, num_admitted
from echo_sched.types import Request, SamplingParams, TokenEvent


class Requests:
    """What one target and one drafter serve. `outputs` by request id, of all that have not ended."""

    def __init__(self, target: Target, drafter: Drafter) -> None:
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # in arrival order
        self.outputs: dict[str, Output] = {}
        self._target = target
        self._drafter = drafter
        self._grammars = Grammars(target.tokenizer, target.facts.vocab_size, target.facts.eos_ids)

    @property
    def decoding(self) -> list[Request]:
        return [request for request in self.running if request.decoding]

    def prepare(self, params: SamplingParams) -> None:
        """Compile a grammar. Raises RequestError."""
        self._grammars.prepare(params)

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestError, naming the field, when it cannot be served."""
        facts = self._target.facts
        check_request(request, facts.vocab_size, facts.max_model_len, facts.eos_ids)
        if request.request_id in self.outputs:
            raise RequestError(f"request id {request.request_id!r} is in use", "rid")
        decode = decoder(self._target.tokenizer, skip_special_tokens=request.params.skip_special_tokens)
        grammar = self._grammars.begin(request.params)
        output = self.outputs[request.request_id] = begin_output(request, decode, facts.eos_ids, grammar)
        decode_all = decoder(self._target.tokenizer, skip_special_tokens=False)
        output.prompt_logprobs.extend(first_prompt_logprobs(request, decode_all))
        self.waiting.append(request)

    def cancel(self, request_id: str) -> None:
        """Drop a request wherever it is; its slot is free at once. Unknown ids are ignored."""
        for request in [r for r in (*self.waiting, *self.running) if r.request_id == request_id]:
            self._release(request)

    def admit(self, max_running: int) -> None:
        """Give slots to those who wait, as long as there are any and no more than `max_running` run."""
        free = min(self._target.kv.num_free, max_running - len(self.running))
        for _ in range(num_admitted(len(self.waiting), free)):
            request = self.waiting.popleft()
            request.slot = self._target.kv.allocate()
            self.running.append(request)
            self._drafter.begin(request)

    def choose_chunks(self, num_decoding: int, chunk_tokens: int) -> list[Chunk]:
        """The prompt tokens of a step, beside `num_decoding` trees."""
        prefilling = [request for request in self.running if request.prefilling]
        remaining = [len(request.prompt_ids) - request.num_computed for request in prefilling]
        sizes = chunk_sizes(remaining, num_decoding, chunk_tokens)
        return [Chunk(request, size) for request, size in zip(prefilling, sizes, strict=True) if size]

    def num_waiting_tokens(self, chunks: Sequence[Chunk]) -> int:
        """Prompt tokens of those who run for which a step with these chunks has no room."""
        left = sum(len(r.prompt_ids) - r.num_computed for r in self.running if r.prefilling)
        return left - sum(chunk.size for chunk in chunks)

    def grammars(self, requests: Sequence[Request]) -> list[Grammar | None]:
        """Where each stands in its grammar, if it has one."""
        return [self.outputs[request.request_id].grammar for request in requests]

    def take_events(self, requests: Sequence[Request], emitted: Sequence[Sequence[int]]) -> list[TokenEvent]:
        """What the streams are told; finished requests leave."""
        events = []
        for request, tokens in zip(requests, emitted, strict=True):
            events.append(take_event(request, tokens, self.outputs[request.request_id]))
            if request.finish is not None:
                self._release(request)
        return events

    def check_integrity(self) -> None:
        """Assert that the cache holds exactly what the running requests say it does."""
        self._target.kv.check_integrity({r.slot: r.num_computed for r in self.running if r.slot is not None})
        assert set(self.outputs) == {r.request_id for r in (*self.running, *self.waiting)}

    def _release(self, request: Request) -> None:
        if request.slot is None:
            self.waiting.remove(request)
        else:
            self.running.remove(request)
            self._drafter.release(request)
            if request.finish is not None and request.finish.type == "abort":
                self._target.kv.clear(request.slot)
            self._target.kv.free(request.slot)
            request.slot = None
        del self.outputs[request.request_id]


def decoder(tokenizer: Any, *, skip_special_tokens: bool) -> Callable[[Sequence[int]], str]:
    """Text of token ids, with nothing tidied up."""
    return partial(tokenizer.decode, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False)
