"""Which tokens may come next so that the output is what a JSON schema or a regex describes.

    Grammars    compiles what requests ask for, and keeps it; any thread
    Grammar     one request's place in its grammar: moved along the tokens that are drawn, never back
    Scout       looks ahead of that place, for draft nodes

The only module that knows llguidance, which reads bytes: the same text may be cut into tokens in any way. Knows no
logits, trees or text streams.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.hf import from_tokenizer

from echo_sched.errors import RequestError
from echo_sched.params import GrammarSource, SamplingParams
from echo_sched.tree import BoolArray

MAX_KEPT = 16  # compiled grammars
# Between JSON's tokens. Without a bound a small model may write blanks until its tokens are out.
WHITESPACE = r"[\x20\x0A\x0D\x09]{1,20}"
# The library's own limits bound a compilation (about 50 ms) and a mask (about 20 ms). The lexer's states are the one
# thing that a request may pile up, 1 to 2 kB each; errors may not quote what other users sent.
LIMITS = LLParserLimits(max_lexer_states=20_000, verbose_errors=False)
DEAD_ENDS = ("NoExtension", "NoExtensionBias")  # what the library calls a text that no token can continue


class Grammars:
    """The grammars of one model's requests, the MAX_KEPT used last. Compiling is pure, so threads may share it."""

    def __init__(self, tokenizer: Any, vocab_size: int, eos_ids: Iterable[int]) -> None:
        self._hf_tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_ids = frozenset(eos_ids)
        self._compiled = lru_cache(MAX_KEPT)(self._compile)

    def prepare(self, params: SamplingParams) -> None:
        """Compile what `begin` will need. Raises RequestError, naming the field."""
        if params.grammar is not None:
            self._compiled(params.grammar)

    def begin(self, params: SamplingParams) -> "Grammar | None":
        """The place before the first token; None where nothing constrains the output. Raises as `prepare` does."""
        if params.grammar is None:
            return None
        matcher = self._compiled(params.grammar).deep_copy()
        anew = partial(self._compile, params.grammar)
        return Grammar(matcher, self._tokenizer, params.ends_with(self._eos_ids), anew)

    def _compile(self, source: GrammarSource) -> LLMatcher:
        try:
            tokenizer = self._tokenizer
        except ValueError as error:
            message = f"{source.field} cannot be honoured: this model's tokenizer does not say which bytes a token is"
            raise RequestError(f"{message} ({error})", source.field) from error
        try:
            matcher = LLMatcher(tokenizer, _grammar_text(source), log_level=0, limits=LIMITS)
        except ValueError as error:  # no JSON, or no text
            raise _refusal(source, str(error)) from error
        if matcher.is_error():
            raise _refusal(source, matcher.get_error())
        first = Grammar(matcher, tokenizer, frozenset())  # what it learns on the way, every copy knows
        if not first.allowed.any():
            raise _refusal(source, first.error or "no token of this vocabulary can begin the output")
        return matcher

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        """Takes a second for a large vocabulary. Raises ValueError where tokens cannot be told as bytes."""
        size = len(self._hf_tokenizer) if hasattr(self._hf_tokenizer, "__len__") else 0
        special = getattr(self._hf_tokenizer, "all_special_ids", [])
        # The library wants an end of its own. It is never asked for it, but a token with text must not be taken for it.
        ends = [token for token in (*sorted(self._eos_ids), *special) if token < min(size, self._vocab_size)]
        if not ends:
            raise ValueError("it has no special token")
        return from_tokenizer(self._hf_tokenizer, n_vocab=self._vocab_size, eos_token=ends)


def _grammar_text(source: GrammarSource) -> str:
    """In the library's own format. Raises ValueError for what is no JSON."""
    if source.field == "regex":
        return LLMatcher.grammar_from_regex(source.source)
    # A schema may set the library's options, but not have keywords ignored.
    return LLMatcher.grammar_from_json_schema(
        source.source, defaults={"whitespace_pattern": WHITESPACE}, overrides={"lenient": False}
    )


def _refusal(source: GrammarSource, reason: str) -> RequestError:
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    # The regex parser draws its error over several lines and says what it means in one of the last.
    line = next((line for line in lines if line.startswith("error:")), lines[0] if lines else "unknown reason")
    return RequestError(f"{source.field} cannot be used: {line.removeprefix('error: ')}", source.field)


class Grammar:
    """One request's place in its grammar.

    A token is allowed if the output's text may begin with what it makes of it (where the library sees the text forced,
    only the tokenizer's own cut of it is). The tokens that would end the request
    (`ends`: EOS unless ignored, and stop ids) are allowed too where the text so far is whole.

    Copies of a matcher share the library's lexer, and once it reaches a limit it fails them all. Other requests and
    looking ahead may have brought it there, so the place is then found again on a matcher of its own (`anew`), and
    what fails there would fail alone. From then on nothing looks ahead: it would use up what the output may need.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        tokenizer: LLTokenizer,
        ends: frozenset[int],
        anew: Callable[[], LLMatcher] | None = None,
    ) -> None:
        self._matcher = matcher
        self._tokenizer = tokenizer
        self._ends = ends
        self._anew = anew  # None: the matcher is its own
        self._scouted = matcher  # as `_matcher`, until that one is its own
        self._output: list[int] = []  # the output but for the end
        self._texts: BoolArray | None = None  # [V] tokens whose text fits here; None: not computed yet

    def push(self, token: int) -> None:
        """The next token of the output: an allowed one. What follows an end is nobody's business."""
        self._texts = None
        if token not in self._ends:
            self._output.append(token)
            self._matcher.consume_token(token)
            self._renew_if_failed()

    @property
    def allowed(self) -> BoolArray:
        """[V] tokens that may come next; a new array. None at all where `error` says why."""
        allowed = self._fitting.copy()
        if self._ends and self._whole:
            allowed[sorted(self._ends)] = True
        return allowed

    @property
    def complete(self) -> bool:
        """The text is whole, and no token of the vocabulary can add to it."""
        return self._whole and not self._fitting.any()

    @property
    def error(self) -> str | None:
        """Why the library gave up: the grammar has grown too complex here. None at a plain dead end."""
        reason = self._matcher.get_error().partition("\n")[0]  # "" where there is none
        return None if reason in ("", *DEAD_ENDS) else reason

    def scout(self) -> "Scout":
        return Scout(self._scouted.deep_copy(), self._ends, frozenset(self._tokenizer.eos_tokens))

    @property
    def _whole(self) -> bool:
        return self._matcher.is_accepting() and not self._matcher.is_error()

    @property
    def _fitting(self) -> BoolArray:
        if self._texts is None:
            mask = self._matcher.compute_bitmask()
            if self._renew_if_failed():
                mask = self._matcher.compute_bitmask()
            bits = np.frombuffer(mask, np.uint8)
            texts = np.unpackbits(bits, count=self._tokenizer.vocab_size, bitorder="little").astype(np.bool_)
            texts[self._tokenizer.eos_tokens] = False
            # A matcher in error asks for the end; so would plain decoding's, since it fails at the same tokens.
            self._texts = texts & (not self._matcher.is_error())
        return self._texts

    def _renew_if_failed(self) -> bool:
        """Come to this place as a request alone does, with a mask before each token, if others may be why it failed."""
        if self._anew is None or self.error is None:
            return False
        self._matcher, self._anew = self._anew(), None
        for token in self._output:
            self._matcher.compute_bitmask()
            self._matcher.consume_token(token)
        return True


class Scout:
    """Looks ahead of one place in a grammar, on a copy: what it finds, or fails at, never changes the output."""

    def __init__(self, matcher: LLMatcher, ends: frozenset[int], textless: frozenset[int]) -> None:
        self._matcher = matcher
        self._ends = ends
        self._textless = textless  # the library's own ends, which it allows wherever the text is whole

    def allows(self, path: Sequence[int], tokens: Sequence[int]) -> list[bool]:
        """Whether each of `tokens` may follow the allowed tokens `path`: what a mask would say there, for less."""
        if not self._matcher.consume_tokens(list(path)):
            return [False] * len(tokens)
        found = self._allowed(tokens)
        self._matcher.rollback(len(path))
        return found

    def _allowed(self, tokens: Sequence[int]) -> list[bool]:
        if self._matcher.is_stopped():  # the request ends here
            return [False] * len(tokens)
        forced = self._forced
        if forced is None:
            return [self._fits(token) for token in tokens]
        return [token == forced and token not in self._textless for token in tokens]

    @property
    def _forced(self) -> int | None:
        """The one token that a mask has here, where the library has settled on the cut of a forced text.

        Looked up as the mask looks it up, so it is the same. A few µs where nothing is forced.
        """
        tokens = self._matcher.compute_ff_tokens()
        return tokens[0] if tokens else None

    def _fits(self, token: int) -> bool:
        if token in self._ends and self._matcher.is_accepting():
            return True
        return token not in self._textless and self._matcher.validate_tokens([token]) == 1
