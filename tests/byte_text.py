"""A byte-level tokenizer of the tiny models' size, whose tokens cut text in many ways: letters, and pieces of JSON."""

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
# No backslash, so that a JSON string is what stands between two quotes. The last ids are padding: no text at all.
TEXTS = (*(chr(code) for code in range(32, 127) if chr(code) != "\\"), "\n", *PIECES)
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
    tokenizer = Tokenizer(BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", additional_special_tokens=[PRIVATE])


def _byte_level(text: str) -> str:
    """As GPT-2's vocabulary writes ASCII: blanks and line ends become printable."""
    return text.replace(" ", "\u0120").replace("\n", "\u010a")
