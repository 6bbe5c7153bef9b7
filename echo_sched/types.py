"""The plain values that travel between the parts: what a caller asks for, what a request has become, what a step did.

Nothing here knows torch, a policy or HTTP.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

# Plain values too, in a file of their own for its length.
from echo_sched.params import MAX_SEED as MAX_SEED
from echo_sched.params import LogprobParams as LogprobParams
from echo_sched.params import SamplingParams as SamplingParams
from echo_sched.params import ServiceParams as ServiceParams
from echo_sched.tree import IntArray, Offers


@dataclass(frozen=True)
class FinishReason:
    """Why a request ended. `matched` is the stop string or the stop/EOS token id, for type "stop"."""

    type: Literal["stop", "length", "abort"]
    matched: str | int | None = None
    message: str | None = None


@dataclass
class RequestStats:
    """What speculation did for one request so far (counts)."""

    num_verify_steps: int = 0
    num_emitted: int = 0  # by verify steps; the first token comes from the prompt
    num_verified: int = 0
    num_accepted: int = 0
    num_truncated: int = 0
    num_widened: int = 0
    accepted_lengths: Counter[int] = field(default_factory=Counter)  # accepted nodes per verify step -> steps

    @property
    def acceptance_length(self) -> float:
        """Tokens emitted per verify step, bonus included (1.0 without speculation)."""
        return self.num_emitted / self.num_verify_steps if self.num_verify_steps else 1.0


@dataclass(eq=False)
class Request:
    """One sequence from arrival to finish. Its phase is derived from its counters, never stored.

    tokens  = prompt_ids ++ output_ids
    KV      = tokens[:num_computed]; while decoding num_computed == num_tokens - 1 (the root has no KV yet)
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    output_ids: list[int] = field(default_factory=list)
    num_computed: int = 0
    slot: int | None = None
    finish: FinishReason | None = None
    stats: RequestStats = field(default_factory=RequestStats)
    group: str | None = None  # the name that the answers to one prompt share, where there are several
    logprobs: LogprobParams | None = None  # None: it wants none
    service: ServiceParams = field(default_factory=ServiceParams)
    first_token_at: float | None = None  # by the loop's clock; None before it

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_ids) + len(self.output_ids)

    def tokens_from(self, start: int) -> list[int]:
        """Tokens of prompt ++ output from index `start` on."""
        in_output = start - len(self.prompt_ids)
        return self.output_ids[in_output:] if in_output >= 0 else [*self.prompt_ids[start:], *self.output_ids]

    @property
    def waiting(self) -> bool:
        return self.slot is None and self.finish is None

    @property
    def prefilling(self) -> bool:
        return self.slot is not None and not self.output_ids

    @property
    def decoding(self) -> bool:
        return self.slot is not None and bool(self.output_ids)

    @property
    def num_remaining(self) -> int:
        """Tokens it may still emit."""
        return self.params.max_new_tokens - len(self.output_ids)


class Logprob(NamedTuple):
    """How likely the model found a token: the float32 log-softmax of its logits, before any sampling field acts."""

    value: float | None  # None where there is no number: the first token asked for of a prompt
    token_id: int
    text: str | None  # None unless asked for


class TokenLogprobs(NamedTuple):
    """One token's logprob, and those of the most likely tokens in its place, best first."""

    token: Logprob
    top: tuple[Logprob, ...]


class TokenEvent(NamedTuple):
    """What one step gave one request: new token ids, the text they release, and the end if this is it."""

    request: Request
    token_ids: tuple[int, ...]
    text: str  # delta; the concatenation over all events is the whole text
    finish: FinishReason | None
    logprobs: tuple[TokenLogprobs, ...] = ()  # one per token id, if asked for
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # all of the prompt's, with the first token


class GateReading(NamedTuple):
    """Confidence of one request's offers at one depth, and what became of it (calibration's raw data)."""

    step: int
    request_id: str
    depth: int
    confidence: float  # exp(max path logprob) over the offers at this depth
    accepted: bool  # the accepted path reached this depth


class NodeReading(NamedTuple):
    """What the drafter thought of one verified node, and what the target made of it (raw data, as above)."""

    step: int
    request_id: str
    depth: int
    path_logp: float
    accepted: bool  # the node is on the emitted path


class StepOffers(NamedTuple):
    """All that the drafter offered in one step (raw data, as above). Arrays [C]."""

    request_ids: tuple[str, ...]  # [B] decoding requests; `offers.request` is an index into them
    offers: Offers
    depth: IntArray
    node: IntArray  # number of the node that it became while trees grew; below -1 where it became none


@dataclass(frozen=True)
class StepRecord:
    """One step in plain numbers. Candidates offered >= nodes verified >= nodes accepted."""

    step: int
    num_decoding: int  # requests whose root was verified
    num_prompt_tokens: int
    k_max: int
    num_offered: int  # candidates the drafter proposed
    num_forbidden: int  # of those, ruled out by a request's grammar before any was granted
    num_levels: int  # depths drafted
    num_dropped: int  # nodes that trees grew by, and lost again before verification
    num_verified: int  # draft nodes in the super-tree
    num_accepted: int
    num_emitted: int
    truncated: dict[int, int]  # depth -> requests truncated before it
    deepened: dict[int, int]  # depth beyond the target depth -> nodes granted there
    num_widened: int
    num_transferred: int  # nodes granted beyond a request's even share of K_max
    seconds: dict[str, float]  # phase -> seconds: schedule, draft, verify, accept, commit
    explored: bool = False  # drafted without a gate, to see whether the gate is right
    expected_accepted: float | None = None  # by the nodes' chances; None where nothing had a price, as in probes
    expected_seconds: float | None = None  # of the verify phase, likewise
    gate_readings: tuple[GateReading, ...] = ()  # only when recording
    node_readings: tuple[NodeReading, ...] = ()  # only when recording: every verified node
    offers: StepOffers | None = None  # only when recording
