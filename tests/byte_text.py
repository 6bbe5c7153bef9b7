"""Byte-level tokenizers whose tokens cut text in many ways.

byte_tokenizer        of the tiny models' size: ASCII letters, and pieces of JSON
every_byte_tokenizer  has each byte, and pieces that begin or end inside a character
"""

from functools import cache

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from tests.loops import EOS_ID
from tests.tiny_models import VOCAB_SIZE

PIECES = (
    '{"',
    '":',
    '",',
    '"}',
    "true",
    "false",
    "null",
    " {",
    ' "',
    ', "',
    "12",
    "00",
    "ab",
    "aba",
    "bb",
    "\n ",
    "]}",
)
# How the tokenizer itself cuts text: it never makes "true", "false", "null" or "\n " of their characters.
MERGES = ('{ "', '" :', '" ,', '" }', "Ġ {", 'Ġ "', ', Ġ"', "1 2", "0 0", "a b", "ab a", "b b", "] }")
# No backslash, so that a JSON string is what stands between two quotes. The last ids are padding: no text at all.
TEXTS = (*(chr(code) for code in range(32, 127) if chr(code) != "\\"), "\n", *PIECES)
WORDS = (
    "true",
    "false",
    "null",
    "12",
    '{"',
    '":',
    '",',
    "aba",
    "bb",
    "na",
    "caf\u00e9",
    "\u6771\u4eac\u90fd",
    "\U0001f600",
)
PRIVATE = "<private>"  # a special token that ends nothing


@cache
def texts() -> tuple[str | None, ...]:
    """[V] the text of each id; None for special and padding ids."""
    placed: list[str | None] = [*TEXTS[:EOS_ID], None, *TEXTS[EOS_ID:], None]
    return (*placed, *[None] * (VOCAB_SIZE - len(placed)))


@cache
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """EOS is the tiny models'."""
    vocabulary = {_byte_level(text): index for index, text in enumerate(texts()) if text is not None}
    vocabulary |= {"<end>": EOS_ID, PRIVATE: len(TEXTS) + 1}
    tokenizer = Tokenizer(BPE(vocabulary, [tuple(pair.split(" ")) for pair in MERGES]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", additional_special_tokens=[PRIVATE])


@cache
def every_byte_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each byte and for each beginning of `WORDS`, of which it cuts off the longest. EOS is id 0."""
    words = [_printable(word.encode()) for word in WORDS]
    merges = [(word[:end], word[end]) for word in words for end in range(1, len(word))]
    pieces = dict.fromkeys(["<end>", PRIVATE, *sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, merges)])
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(BPE(vocabulary, list(dict.fromkeys(merges))))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", additional_special_tokens=[PRIVATE])


def _printable(data: bytes) -> str:
    """One printable character per byte, as in GPT-2's vocabulary."""
    (found,) = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(data.decode())
    return str(found[0])


def _byte_level(text: str) -> str:
    """As GPT-2's vocabulary writes ASCII: blanks and line ends become printable."""
    return text.replace(" ", "\u0120").replace("\n", "\u010a")
