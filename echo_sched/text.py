"""Incremental detokenisation: token ids in, text that is safe to show out, stop strings caught on the way.

Two jobs, one class each: `_Detokenizer` knows ids and half-written characters, `_StopScanner` knows stop strings.
Nothing here knows a tokenizer (decoding is a callable), a model, or why a request ends for any other reason.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

REPLACEMENT = "\ufffd"  # what decoders write for bytes that are not (yet) a character
MAX_PARTIAL = 3  # a UTF-8 character has at most this many bytes before its last one
KEEP_IDS = 6  # ids of context that a shortened window keeps; a character is at most four


class TextStream:
    """Text of one growing token sequence, released piece by piece.

    decode: ids -> str, pure, for any slice of the sequence. Bind `skip_special_tokens` to taste and
        `clean_up_tokenization_spaces=False`: clean-up rewrites text that has already been released.
    stop: stop strings, none of them empty. The one that completes first in the text wins (the longest where several
        complete at the same character), so the result depends on the text and not on how tokens cut it.
    trim_stop: leave the stop string out of the text. Either way what follows it, in the same token too, is dropped.
    num_exempt: a stop string counts only if a token after the first `num_exempt` completes it.

    Everything that `take` returned, the last time with `final=True`, adds up to the text; without a stop that is
    `decode(all ids)`, broken characters at the end included, unless decode takes back characters that are already out
    (byte fallback does for bytes that are not UTF-8). Work per token does not grow with the sequence.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        stop: Sequence[str] = (),
        trim_stop: bool = True,
        num_exempt: int = 0,
    ) -> None:
        self._detokenizer = _Detokenizer(decode)
        self._scanner = _StopScanner(stop)
        self._trim_stop = trim_stop
        self._num_exempt = num_exempt  # pushes to come that complete no stop string
        self._safe: list[str] = []  # ruled out as part of a stop string, not taken yet
        self._ended = False  # a stop string matched, or the rest was flushed

    def push(self, token_id: int) -> str | None:
        """Add one id; return the stop string that is now complete in the text, if any. No push may follow that."""
        assert not self._ended, "a text that has ended takes no more tokens"
        settled = self._detokenizer.push(token_id)
        if self._num_exempt:
            self._num_exempt -= 1
            self._safe.append(self._scanner.pass_over(settled))
            return None
        match = self._scanner.scan(settled)
        self._safe.append(match.before)
        if match.stop is None:
            return None
        if not self._trim_stop:
            self._safe.append(match.stop)
        self._ended = True
        return match.stop

    def take(self, final: bool = False) -> str:
        """Text that became safe since the last take: whole characters only, and nothing that may still turn out to be
        the beginning of a stop string. `final` ends the text and releases what was held back."""
        if final and not self._ended:
            self._safe.append(self._scanner.held + self._detokenizer.held)
            self._ended = True
        text = "".join(self._safe)
        self._safe.clear()
        return text


class _Detokenizer:
    """Ids to text; a character leaves once no later id can change it.

    A window of recent ids is decoded at each push. Decoders look at their neighbours (a first token may lose its
    leading space, one character may span tokens), so the window keeps ids whose text is already out, as context.

        text of the window   [0, released)  out    [released, end)  held: broken characters that may be completed
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._text = ""
        self._num_released = 0
        self._num_broken = 0  # pushes in a row after which the text ended in a broken character

    @property
    def held(self) -> str:
        """The broken end, as the decoder writes it."""
        return self._text[self._num_released :]

    def push(self, token_id: int) -> str:
        """Add one id; return the characters it settles."""
        before = self._text
        self._ids.append(token_id)
        self._text = self._decode(self._ids)
        num_held = len(self._text) - len(self._text.rstrip(REPLACEMENT))
        self._num_broken = self._num_broken + 1 if num_held else 0
        if self._num_broken > MAX_PARTIAL:
            # Some of these bytes can never become a character; only the last mark may still be a beginning.
            num_held = min(num_held, 1)
        end = max(self._num_released, len(self._text) - num_held)
        settled = self._text[self._num_released : end]
        self._num_released = end
        self._drop_silent(before)
        self._shorten()
        return settled

    def _drop_silent(self, before: str) -> None:
        """Forget an id without text of its own (a skipped special token), or a long run of them would be decoded again
        and again. Where there is no text at all yet only repetitions go: a lone space piece is silent there too."""
        repeated = self._ids[-2:-1] == self._ids[-1:]
        if self._text == before and not self._num_broken and (before or repeated):
            self._ids.pop()

    def _shorten(self) -> None:
        """Let go of old ids once the window is twice what is needed.

        Not while a character may be incomplete: byte-fallback decoders then write marks for the whole run of bytes. A
        window that starts inside a character shows up to MAX_PARTIAL marks of its own, so only its end is compared.
        """
        if len(self._ids) <= 2 * KEEP_IDS or 0 < self._num_broken <= MAX_PARTIAL:
            return
        ids = self._ids[-KEEP_IDS:]
        text = self._decode(ids)
        num_own = min(MAX_PARTIAL, len(text) - len(text.lstrip(REPLACEMENT)))
        common = text[num_own:]
        if common and self._text.endswith(common):  # at most one mark is held here
            self._num_released = len(text) - len(self.held)
            self._ids, self._text = ids, text


class _Match(NamedTuple):
    """What a scan settled: the text before any stop string, and the stop string that is complete, if any."""

    before: str
    stop: str | None


class _StopScanner:
    """Finds stop strings in text that arrives in pieces.

    `held` is the longest end of the text that is the beginning of a stop string; a match that completes later can only
    start inside it.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string matches everywhere"
        self._stops = sorted(stops, key=len, reverse=True)  # the longest wins a tie
        self.held = ""
        self._num_passed = 0  # characters of `held` that were passed over: a match must end behind them

    def scan(self, piece: str) -> _Match:
        text = self.held + piece
        firsts = ((stop, max(0, self._num_passed - len(stop) + 1)) for stop in self._stops)
        ends = [(start + len(stop), stop) for stop, first in firsts if (start := text.find(stop, first)) >= 0]
        if ends:
            end, stop = min(ends, key=lambda match: match[0])
            return _Match(text[: end - len(stop)], stop)
        before = self._hold(text)
        self._num_passed = max(0, self._num_passed - len(before))
        return _Match(before, None)

    def pass_over(self, piece: str) -> str:
        """Take text that completes no stop string, though one may begin in it. Returns what is settled, as `scan`."""
        before = self._hold(self.held + piece)
        self._num_passed = len(self.held)
        return before

    def _hold(self, text: str) -> str:
        """Keep the end of `text` that may be the beginning of a stop string; return the rest."""
        keep = max((self._overlap(text, stop) for stop in self._stops), default=0)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep]

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """Length of the longest proper beginning of `stop` that ends `text`."""
        longest = min(len(stop) - 1, len(text))
        return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
