"""TextStream against decoding everything at once, for decoders of the two families that language models use."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import decoders

from echo_sched.text import TextStream

Decode = Callable[[Sequence[int]], str]
SILENT = 256  # a special token that the caller's decode skips


def decode_bytes(ids: Sequence[int]) -> str:
    """Byte-level BPE: an id is a byte, a character may span ids."""
    return bytes(token for token in ids if token != SILENT).decode("utf-8", errors="replace")


PIECES = ["▁", "▁the", "▁a", "cat", "s", ".", "▁\N{GRINNING FACE}", "é", "▁▁▁", "END", "\n", "▁END"]
SPACES = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
BYTE_FALLBACK = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)


def decode_pieces(ids: Sequence[int]) -> str:
    """SentencePiece-like: the first piece loses its leading space."""
    return str(SPACES.decode([PIECES[token] for token in ids if token < len(PIECES)]))


def decode_fallback(ids: Sequence[int]) -> str:
    """SentencePiece with byte fallback: below 256 a byte, above it a piece. A run of bytes is broken as a whole."""
    return str(BYTE_FALLBACK.decode([f"<0x{t:02X}>" if t < 256 else PIECES[t - 256] for t in ids]))


def stream(decode: Decode, ids: Sequence[int], stop: Sequence[str] = (), trim_stop: bool = True) -> TextStream:
    """Push until a stop string matches."""
    text = TextStream(decode, stop, trim_stop)
    for token in ids:
        if text.push(token) is not None:
            break
    return text


def whole(decode: Decode, ids: Sequence[int]) -> str:
    """What a stream without stop strings gives in one take at the end."""
    return stream(decode, ids).take(final=True)


whole_text = st.text(alphabet=st.characters(exclude_characters="\ufffd", exclude_categories=["Cs"]))
byte_ids = st.lists(st.integers(0, SILENT))
utf8_ids = st.text().map(lambda text: list(text.encode()))
piece_ids = st.lists(st.integers(0, len(PIECES)))
fallback_ids = st.lists(
    whole_text.map(lambda text: list(text.encode())) | st.integers(256, 255 + len(PIECES)).map(lambda token: [token])
).map(lambda parts: [token for part in parts for token in part])
any_ids = st.one_of(
    st.tuples(st.just(decode_bytes), st.one_of(byte_ids, utf8_ids)),
    st.tuples(st.just(decode_pieces), piece_ids),
    st.tuples(st.just(decode_fallback), fallback_ids),
)


@settings(max_examples=200)
@given(any_ids, st.sets(st.integers(0, 200)))
def test_the_pieces_add_up_to_decoding_everything_at_once(case: tuple[Decode, list[int]], take_after: set[int]) -> None:
    decode, ids = case
    text = TextStream(decode)
    taken = []
    for index, token in enumerate(ids):
        assert text.push(token) is None
        if index in take_after:
            taken.append(text.take())
    taken.append(text.take(final=True))
    assert "".join(taken) == decode(ids)


@settings(deadline=None)
@given(whole_text.map(lambda text: "first" + text))
@example("\N{GRINNING FACE}" * 40)
def test_a_character_is_never_released_before_its_last_byte(expected: str) -> None:
    for decode in (decode_bytes, decode_fallback):
        text = TextStream(decode)
        released = ""
        for count, token in enumerate(expected.encode(), start=1):
            text.push(token)
            released += text.take()
            assert released == expected.encode()[:count].decode(errors="ignore")
        assert released + text.take(final=True) == expected


def test_bytes_that_never_become_a_character_do_not_hold_the_text_back() -> None:
    text = stream(decode_bytes, [0xFF] * 50)
    released = text.take()
    assert len(released) >= 40
    for token in "\N{GRINNING FACE}!".encode():
        text.push(token)
        piece = text.take()
        assert "\ufffd" not in piece.lstrip("\ufffd")
        released += piece
    assert released + text.take(final=True) == "\ufffd" * 50 + "\N{GRINNING FACE}!"


def test_an_incomplete_character_at_the_end_comes_out_with_the_final_take() -> None:
    text = stream(decode_bytes, "aé".encode()[:-1])
    assert text.take() == "a"
    assert text.take(final=True) == "\ufffd"


def test_only_the_first_piece_loses_its_leading_space() -> None:
    ids = [PIECES.index("▁the"), PIECES.index("▁a")] * 60
    assert whole(decode_pieces, ids) == " ".join(["the a"] * 60)


def test_tokens_that_cut_through_characters_for_ever_still_flow() -> None:
    """No token ends on a character's boundary, so the text never ends cleanly, yet nothing needs to wait."""
    data = ("\N{GRINNING FACE}" * 100).encode()
    vocabulary = [data[:2], data[2:6]]
    text = TextStream(lambda ids: b"".join(vocabulary[t] for t in ids).decode(errors="replace"))
    released = ""
    for count, token in enumerate([0] + [1] * 80):
        text.push(token)
        released += text.take()
        assert released == "\N{GRINNING FACE}" * count
    assert released + text.take(final=True) == "\N{GRINNING FACE}" * 80 + "\ufffd"


@pytest.mark.parametrize(
    "ids",
    [
        [ord("a")] * 3000,
        [0xFF] * 3000,
        [0xF0, 0x9F, 0x98] * 1000,
        list("\N{GRINNING FACE}".encode()) * 750,
        [SILENT] * 3000,
        [ord("a")] + [SILENT] * 3000,
    ],
    ids=["plain", "invalid", "incomplete", "wide", "silent", "silent after text"],
)
def test_work_per_token_does_not_grow_with_the_sequence(ids: list[int]) -> None:
    num_decoded = 0

    def counting(window: Sequence[int]) -> str:
        nonlocal num_decoded
        num_decoded += len(window)
        return decode_bytes(window)

    assert whole(counting, ids) == decode_bytes(ids)
    assert num_decoded < 40 * len(ids)


def earliest_stop(text: str, stops: Sequence[str], exempt: int = 0) -> tuple[int, str] | None:
    """(end, stop) by brute force: read the text character by character and look at its end; the longest stop wins."""
    for end in range(exempt + 1 if exempt else 0, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return end, stop
    return None


stop_strings = st.lists(st.text("abé", min_size=1, max_size=4), min_size=1, max_size=3)


@st.composite
def cut_texts(draw: st.DrawFn) -> tuple[str, list[bytes]]:
    """A text over few letters, so that stop strings are frequent, cut into tokens at arbitrary bytes."""
    data = draw(st.text("abé", max_size=24)).encode()
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(data) - 1)), max_size=12)))
    edges = [0, *cuts, len(data)]
    return data.decode(), [data[low:high] for low, high in pairwise(edges)]


@settings(max_examples=200)
@given(cut_texts(), stop_strings, st.booleans())
def test_stop_strings_are_found_at_once_and_never_shown(
    cut: tuple[str, list[bytes]], stops: list[str], trim: bool
) -> None:
    complete, vocabulary = cut
    text = TextStream(lambda ids: b"".join(vocabulary[t] for t in ids).decode(errors="replace"), stops, trim)
    expected = earliest_stop(complete, stops)
    released = ""
    for token in range(len(vocabulary)):
        seen = b"".join(vocabulary[: token + 1]).decode(errors="ignore")
        now = earliest_stop(seen, stops)
        assert text.push(token) == (now[1] if now else None)
        released += text.take()
        if now:
            break
        beginnings = {stop[:size] for stop in stops for size in range(1, len(stop))}
        assert released == seen[: len(seen) - max((len(b) for b in beginnings if seen.endswith(b)), default=0)]
    released += text.take(final=True)
    if expected is None:
        assert released == complete
    else:
        end, stop = expected
        assert released == complete[: end - len(stop) if trim else end]


@settings(max_examples=200)
@given(cut_texts(), stop_strings, st.integers(0, 6))
def test_stop_strings_that_end_in_exempt_tokens_do_not_count(
    cut: tuple[str, list[bytes]], stops: list[str], num_exempt: int
) -> None:
    complete, vocabulary = cut
    text = TextStream(
        lambda ids: b"".join(vocabulary[t] for t in ids).decode(errors="replace"), stops, num_exempt=num_exempt
    )
    exempt = len(b"".join(vocabulary[:num_exempt]).decode(errors="ignore"))
    expected = earliest_stop(complete, stops, exempt)
    matched, released = None, ""
    for token in range(len(vocabulary)):
        matched = text.push(token)
        released += text.take()
        if matched is not None:
            break
    released += text.take(final=True)
    assert matched == (expected[1] if expected else None)
    assert released == (complete[: expected[0] - len(expected[1])] if expected else complete)


def test_a_stop_string_may_begin_in_an_exempt_token_and_end_behind_it() -> None:
    vocabulary = ["END a", "bEN", "D", "c END"]
    text = TextStream(lambda ids: "".join(vocabulary[t] for t in ids), ["END", "bE"], num_exempt=2)
    assert [text.push(0), text.push(1), text.push(2)] == [None, None, "END"]
    assert text.take(final=True) == "END ab"


def test_a_stop_string_across_tokens_cuts_what_follows_it_in_its_last_token() -> None:
    vocabulary = ["one E", "N", "D two", "END"]
    for trim, expected in ((True, "one "), (False, "one END")):
        text = TextStream(lambda ids: "".join(vocabulary[t] for t in ids), ["END"], trim)
        assert [text.push(0), text.take(), text.push(1), text.take()] == [None, "one ", None, ""]
        assert text.push(2) == "END"
        assert text.take() + text.take(final=True) == expected.removeprefix("one ")


def test_a_beginning_of_a_stop_string_comes_out_once_it_is_ruled_out_or_at_the_end() -> None:
    text = TextStream(decode_bytes, ["stop"])
    released = []
    for letter in b"sto stos":
        text.push(letter)
        released.append(text.take())
    assert released == ["", "", "", "sto ", "", "", "", "sto"]
    assert text.take(final=True) == "s"


def test_the_stop_string_that_completes_first_wins() -> None:
    vocabulary = ["xabcd"]
    text = TextStream(lambda ids: "".join(vocabulary[t] for t in ids), ["abcd", "bc", "c"])
    assert text.push(0) == "bc"
    assert text.take(final=True) == "xa"


def test_skipped_special_tokens_between_pieces_change_nothing() -> None:
    skipped = len(PIECES)
    ids = [skipped] * 40 + [1, skipped, 3] + [skipped] * 40 + [2, 4]
    assert whole(decode_pieces, ids) == "thecat as"


def test_a_lone_space_piece_is_remembered_through_any_number_of_skipped_tokens() -> None:
    ids = [PIECES.index("▁"), *[len(PIECES), len(PIECES) + 1] * 20, PIECES.index("▁the")]
    assert whole(decode_pieces, ids) == decode_pieces(ids) == " the"
