"""The plain values that travel between the parts: what a caller asks for, what a request has become, what a step did.

Nothing here knows torch, a policy or HTTP.
"""

import math
import reprlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from echo_sched.errors import RequestError
from echo_sched.tree import IntArray, Offers

GREEDY_BELOW = 1e-6  # a temperature below this is greedy decoding (http.md)
MAX_SEED = 2**64 - 1
# Stops are looked for at every token, on the thread that serves everybody.
MAX_STOPS, MAX_STOP_LEN, MAX_STOP_IDS = 64, 256, 1024


@dataclass(frozen=True)
class SamplingParams:
    """How one request's tokens are chosen and when it stops.

    Raises RequestError, naming the field, for any value out of range.
    """

    max_new_tokens: int = 128
    temperature: float = 1.0
    top_k: int = -1  # -1: off
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    no_stop_trim: bool = False
    skip_special_tokens: bool = True
    speculation: bool = True  # False: decoded plainly inside the same batch

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "min_p"):
            if not math.isfinite(getattr(self, name)):
                raise RequestError(f"{name} must be a finite number", name)
        checks = (
            ("max_new_tokens", self.max_new_tokens >= 1, "must be at least 1"),
            ("temperature", self.temperature >= 0.0, "must not be negative"),
            ("top_k", self.top_k == -1 or self.top_k >= 1, "must be -1 (off) or at least 1"),
            ("top_p", 0.0 < self.top_p <= 1.0, "must be in (0, 1]"),
            ("min_p", 0.0 <= self.min_p <= 1.0, "must be in [0, 1]"),
            ("seed", 0 <= self.seed <= MAX_SEED, "must be in [0, 2**64 - 1]"),
            ("stop", all(self.stop), "must not contain an empty string"),
            ("stop", len(self.stop) <= MAX_STOPS, f"may name at most {MAX_STOPS} strings"),
            ("stop", all(len(s) <= MAX_STOP_LEN for s in self.stop), f"strings have at most {MAX_STOP_LEN} characters"),
            ("stop_token_ids", len(self.stop_token_ids) <= MAX_STOP_IDS, f"may name at most {MAX_STOP_IDS} ids"),
            ("stop_token_ids", all(t >= 0 for t in self.stop_token_ids), "must not be negative"),
        )
        for name, good, rule in checks:
            if not good:
                raise RequestError(f"{name} {rule}, got {reprlib.repr(getattr(self, name))}", name)

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW


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


class TokenEvent(NamedTuple):
    """What one step gave one request: new token ids, the text they release, and the end if this is it."""

    request: Request
    token_ids: tuple[int, ...]
    text: str  # delta; the concatenation over all events is the whole text
    finish: FinishReason | None


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
    gate_readings: tuple[GateReading, ...] = ()  # only when recording
    node_readings: tuple[NodeReading, ...] = ()  # only when recording: every verified node
    offers: StepOffers | None = None  # only when recording
