"""How one request's tokens are chosen, when it stops and what it wants to know: every field, with its range.

Knows no model: what depends on a vocabulary or on EOS is checked where requests are queued.
"""

import math
import reprlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from echo_sched.errors import RequestError

GREEDY_BELOW = 1e-6  # a temperature below this is greedy decoding (http.md)
MAX_SEED = 2**64 - 1
SEED_BITS = 53  # of seeds that we make: they are reported in JSON, where many clients read numbers as doubles
# Stops are looked for at every token, on the thread that serves everybody.
MAX_STOPS, MAX_STOP_LEN, MAX_STOP_IDS = 64, 256, 1024
MAX_TOP_LOGPROBS = 20  # as in OpenAI's API
MIN_PRIORITY, MAX_PRIORITY = 0.001, 1000.0
MAX_TPOT_MS = 1e6
MAX_GRAMMAR_LEN = 2**16  # characters of a schema or regex; compiling one of this size takes some 50 ms


class GrammarSource(NamedTuple):
    """What the output's text must be, as the caller wrote it."""

    field: Literal["json_schema", "regex"]
    source: str


@dataclass(frozen=True)
class SamplingParams:
    """The sampling fields. In the order in which they act on the logits of a token:

    repetition_penalty (prompt and output), frequency_penalty and presence_penalty (output only), logit_bias,
    allowed_token_ids, bad_token_ids, min_new_tokens, json_schema or regex (see engine/processors.py); temperature,
    top_k, top_p, min_p.

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
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, what is added to its logit)
    allowed_token_ids: tuple[int, ...] | None = None  # None: all
    bad_token_ids: tuple[int, ...] = ()
    # Nothing but max_new_tokens, and a grammar that is complete, ends the request before the token after these.
    min_new_tokens: int = 0
    json_schema: str | None = None  # the output is JSON that this schema, itself JSON, describes
    regex: str | None = None  # the whole output matches

    def __post_init__(self) -> None:
        for name in (
            "temperature",
            "top_p",
            "min_p",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
        ):
            if not math.isfinite(getattr(self, name)):
                raise RequestError(f"{name} must be a finite number", name)
        if self.json_schema is not None and self.regex is not None:
            raise RequestError("regex excludes json_schema; send one of them", "regex")
        for name, good, rule in (*self._ranges(), *self._id_rules()):
            if not good:
                raise RequestError(f"{name} {rule}, got {reprlib.repr(getattr(self, name))}", name)

    def _ranges(self) -> tuple[tuple[str, bool, str], ...]:
        """(field, whether its value is in range, the rule)."""
        return (
            ("max_new_tokens", self.max_new_tokens >= 1, "must be at least 1"),
            ("temperature", self.temperature >= 0.0, "must not be negative"),
            ("top_k", self.top_k == -1 or self.top_k >= 1, "must be -1 (off) or at least 1"),
            ("top_p", 0.0 < self.top_p <= 1.0, "must be in (0, 1]"),
            ("min_p", 0.0 <= self.min_p <= 1.0, "must be in [0, 1]"),
            ("seed", 0 <= self.seed <= MAX_SEED, "must be in [0, 2**64 - 1]"),
            ("stop", all(self.stop), "must not contain an empty string"),
            ("stop", len(self.stop) <= MAX_STOPS, f"may name at most {MAX_STOPS} strings"),
            ("stop", all(len(s) <= MAX_STOP_LEN for s in self.stop), f"strings have at most {MAX_STOP_LEN} characters"),
            ("repetition_penalty", 0.0 < self.repetition_penalty <= 2.0, "must be in (0, 2]"),
            ("presence_penalty", -2.0 <= self.presence_penalty <= 2.0, "must be in [-2, 2]"),
            ("frequency_penalty", -2.0 <= self.frequency_penalty <= 2.0, "must be in [-2, 2]"),
            ("min_new_tokens", self.min_new_tokens >= 0, "must not be negative"),
            (
                "min_new_tokens",
                self.min_new_tokens <= self.max_new_tokens,
                f"must be at most max_new_tokens ({self.max_new_tokens})",
            ),
            (
                "json_schema",
                len(self.json_schema or "") <= MAX_GRAMMAR_LEN,
                f"has at most {MAX_GRAMMAR_LEN} characters",
            ),
            ("regex", len(self.regex or "") <= MAX_GRAMMAR_LEN, f"has at most {MAX_GRAMMAR_LEN} characters"),
        )

    def _id_rules(self) -> tuple[tuple[str, bool, str], ...]:
        """The same for fields that name token ids."""
        biased = [token for token, _ in self.logit_bias]
        allowed = () if self.allowed_token_ids is None else self.allowed_token_ids
        leaves_some = self.allowed_token_ids is None or bool(set(allowed) - set(self.bad_token_ids))
        return (
            ("stop_token_ids", len(self.stop_token_ids) <= MAX_STOP_IDS, f"may name at most {MAX_STOP_IDS} ids"),
            ("stop_token_ids", not any(t < 0 for t in self.stop_token_ids), "must not be negative"),
            ("logit_bias", not any(t < 0 for t in biased), "must not name negative ids"),
            ("logit_bias", len(set(biased)) == len(biased), "must not name an id twice"),
            ("logit_bias", all(math.isfinite(bias) for _, bias in self.logit_bias), "must hold finite numbers"),
            ("bad_token_ids", not any(t < 0 for t in self.bad_token_ids), "must not be negative"),
            ("allowed_token_ids", not any(t < 0 for t in allowed), "must not be negative"),
            ("allowed_token_ids", leaves_some, "must hold an id that is not among bad_token_ids"),
        )

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def penalises(self) -> bool:
        """Whether a logit depends on the tokens before it."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)

    @property
    def processes_logits(self) -> bool:
        """Whether anything happens to logits before the temperature."""
        rules_out = self.allowed_token_ids is not None or bool(self.bad_token_ids) or self.min_new_tokens > 0
        return self.penalises or bool(self.logit_bias) or rules_out or self.grammar is not None

    @property
    def grammar(self) -> GrammarSource | None:
        """What constrains the output, if anything."""
        if self.json_schema is not None:
            return GrammarSource("json_schema", self.json_schema)
        return None if self.regex is None else GrammarSource("regex", self.regex)

    def ends_with(self, eos_ids: Iterable[int]) -> frozenset[int]:
        """The token ids that end the request: its stop ids, and EOS unless ignored."""
        return frozenset(self.stop_token_ids) | frozenset(() if self.ignore_eos else eos_ids)


@dataclass(frozen=True)
class LogprobParams:
    """Which logprobs a request wants beside its output: of every output token, and maybe more.

    Raises RequestError, naming the field, for any value out of range.
    """

    top_logprobs_num: int = 0  # the most likely tokens, in the place of each token
    logprob_start_len: int = -1  # prompt tokens from this index on; -1: none
    return_text: bool = False  # the text of each token too

    def __post_init__(self) -> None:
        if not 0 <= self.top_logprobs_num <= MAX_TOP_LOGPROBS:
            message = f"top_logprobs_num must be in [0, {MAX_TOP_LOGPROBS}], got {self.top_logprobs_num}"
            raise RequestError(message, "top_logprobs_num")
        if self.logprob_start_len < -1:
            message = f"logprob_start_len must be -1 (no prompt token) or an index, got {self.logprob_start_len}"
            raise RequestError(message, "logprob_start_len")


@dataclass(frozen=True)
class ServiceParams:
    """How a request is served beside others. Changes when its tokens come, never which.

    Raises RequestError, naming the field, for any value out of range.
    """

    priority: float = 1.0  # what its draft nodes weigh where the budget is scarce
    tpot_slo_ms: float | None = None  # milliseconds per output token after the first that it should take; None: any

    def __post_init__(self) -> None:
        if not MIN_PRIORITY <= self.priority <= MAX_PRIORITY:
            message = f"priority must be in [{MIN_PRIORITY:g}, {MAX_PRIORITY:g}], got {self.priority:g}"
            raise RequestError(message, "priority")
        if self.tpot_slo_ms is not None and not 0.0 < self.tpot_slo_ms <= MAX_TPOT_MS:
            message = f"tpot_slo_ms must be above 0 and at most {MAX_TPOT_MS:g}, got {self.tpot_slo_ms:g}"
            raise RequestError(message, "tpot_slo_ms")


def choice_seed(seed: int, choice: int) -> int:
    """Seed of one of several answers to a prompt. Choice 0 keeps the request's own; choice k takes the upper SEED_BITS
    of the k-th number that splitmix64 (Steele, Lea, Flood 2014) draws from state `seed`."""
    if choice == 0:
        return seed
    state = (seed + choice * 0x9E3779B97F4A7C15) & MAX_SEED
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MAX_SEED
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MAX_SEED
    return (state ^ (state >> 31)) >> (64 - SEED_BITS)
