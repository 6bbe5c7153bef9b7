"""Does a draft model mean the same by a token id as the target? Names, ids of probe texts and sizes must agree.

Only the numbers of padding rows may differ: models of one family are often padded differently. Knows nothing of
weights, requests or drafting.
"""

import reprlib
from collections.abc import Mapping, Sequence

from transformers import PreTrainedTokenizerBase as Tokenizer

from echo_sched.errors import ModelError

# What tokenizers with the same tokens may still cut differently: contractions and digits, code and its white space,
# scripts, composed and decomposed letters, joined emoji.
PROBE_TEXTS = (
    "The quick brown fox can't jump over 12,345.67 lazy dogs -- it'll cost $9.99!\n\n",
    'def f(x: int) -> list[str]:\n\treturn [f"{x!r}" for _ in range(10**3)]  # snake_case, CamelCase\r\n',
    "Größe, naïve, Ελληνικά, русский язык, 中文字符, 日本語のテキスト, 한국어, العربية, עברית, हिन्दी, ภาษาไทย",
    "e\u0301 and \u00e9, \U0001f642 and \U0001f468\u200d\U0001f469\u200d\U0001f467, zero\u200bwidth,   spaces ",
)
SHOWN = 3  # mismatches that a message names


def shared_vocabulary(target: Tokenizer, draft: Tokenizer, target_rows: int, draft_rows: int) -> int:
    """How many token ids both models know, from 0 on; each model has logits for that many rows or more.

    Raises ModelError naming what differs.
    """
    names = target.get_vocab()
    _check_names(names, draft.get_vocab())
    uncut = sorted(target.get_added_vocab().keys() | draft.get_added_vocab().keys())  # special tokens are among them
    for text in (*PROBE_TEXTS, "".join(f"a{name}b\n" for name in uncut)):
        _check_ids(target, draft, text)
    shared, larger = sorted((target_rows, draft_rows))
    beyond = sorted((number, name) for name, number in names.items() if shared <= number < larger)
    if beyond:
        who = "draft model" if draft_rows < target_rows else "target"
        raise ModelError(
            f"the {who} has {shared} rows of tokens and the other {larger}; the difference is more than padding: "
            f"it holds {_listed([f'{name!r} ({number})' for number, name in beyond])}"
        )
    return shared


def _check_names(target: Mapping[str, int], draft: Mapping[str, int]) -> None:
    """Every token of either, special tokens included, has the same id in the other."""
    differing = [
        f"{name!r} is {target.get(name, 'no token')} in the target's and {draft.get(name, 'no token')} in its own"
        for name in sorted(target.keys() | draft.keys())
        if target.get(name) != draft.get(name)
    ]
    if differing:
        raise ModelError(f"it has another tokenizer: {_listed(differing)}")


def _check_ids(target: Tokenizer, draft: Tokenizer, text: str) -> None:
    """The text is cut into the same tokens."""
    ours, theirs = (tokenizer.encode(text, add_special_tokens=False) for tokenizer in (target, draft))
    if ours != theirs:
        pairs = zip(ours, theirs, strict=False)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))
        rest, rest_here = (
            tokenizer.convert_ids_to_tokens(ids[same : same + SHOWN]) or "its end"
            for tokenizer, ids in ((target, ours), (draft, theirs))
        )
        raise ModelError(
            f"it has another tokenizer: {reprlib.repr(text)} goes on after {same} tokens with {rest} in the target's "
            f"and with {rest_here} in its own"
        )


def _listed(items: Sequence[str]) -> str:
    more = len(items) - SHOWN
    return "; ".join(items[:SHOWN]) + (f"; and {more} more" if more > 0 else "")
