"""What a regex or a JSON schema allows, the slow way: by derivatives (regex_nodes.py), one output at a time.

The twin of engine/grammar.py: it shares the tokenizer with it, and nothing with its library. Schemas are turned into
regexes.
"""

import re
from collections.abc import Sequence
from functools import cache, reduce
from typing import Any

from tests.byte_text import byte_tokenizer, texts
from tests.regex_nodes import NONE, Node, derive, nullable, parse

CHARACTERS = (*map(chr, range(32, 127)), "\n")  # what text may be made of here
BLANKS = "([ \n]{1,20})?"  # as bounded by engine/grammar.py; the tiny vocabulary has no other blanks


class RegexLanguage:
    """`echo_sched.engine.choice.Language` of a regex, over the tiny byte-level vocabulary."""

    def __init__(self, regex: str) -> None:
        self._start = parse(regex)
        self._after = cache(self._read)  # what may follow these ids
        self.forced_token = cache(
            self._forced_token
        )  # of a tuple of ids: the one token that may follow, if it is forced

    def begins(self, ids: Sequence[int]) -> bool:
        return self._after(tuple(ids)) is not NONE  # a node that matches nothing is always NONE

    def holds(self, ids: Sequence[int]) -> bool:
        return nullable(self._after(tuple(ids)))

    def _read(self, ids: tuple[int, ...]) -> Node:
        if not ids:
            return self._start
        text, before = texts()[ids[-1]], self._after(ids[:-1])
        forced = self.forced_token(ids[:-1])
        return NONE if text is None or forced not in (None, ids[-1]) else reduce(derive, text, before)

    def _forced_token(self, ids: tuple[int, ...]) -> int | None:
        """The first token of the tokenizer's own cut of the forced text, the last token counted in if it stays whole.

        None also where a longer token may join that first one with what comes after the forced text.
        """
        text, rest = _forced_text(self._after(ids))
        cut = _cut((texts()[ids[-1]] or "") + text) if ids else _cut(text)
        tokens = cut[1:] if ids and cut[:1] == [ids[-1]] else _cut(text)
        end_of_first = len(texts()[tokens[0]] or "") if tokens else 0
        is_open = any(_is_joined(text[start:], rest) for start in range(end_of_first))
        return tokens[0] if tokens and not is_open else None


def _forced_text(language: Node) -> tuple[str, Node]:
    """The characters that must come next, as long as each is the only one and no text is whole, and what follows."""
    text = ""
    while not nullable(language):
        following = [character for character in CHARACTERS if derive(language, character) is not NONE]
        if len(following) != 1:
            break
        text += following[0]
        language = derive(language, following[0])
    return text, language


def _is_joined(end: str, rest: Node) -> bool:
    """Whether a token begins with `end` and goes on with what may follow it."""
    return any(
        text is not None
        and len(text) > len(end)
        and text.startswith(end)
        and reduce(derive, text[len(end) :], rest) is not NONE
        for text in texts()
    )


def _cut(text: str) -> list[int]:
    return list(byte_tokenizer()(text)["input_ids"])


def schema_language(schema: dict[str, Any]) -> RegexLanguage:
    return RegexLanguage(schema_regex(schema))


def schema_regex(schema: dict[str, Any]) -> str:
    """Of a schema made of objects with required properties, arrays, strings, integers, booleans, null, enums and
    constants."""
    if "const" in schema:
        return _quoted(schema["const"])
    if "enum" in schema:
        return f"({'|'.join(_quoted(value) for value in schema['enum'])})"
    match schema["type"]:
        case "object":
            pairs = [f'"{name}"{BLANKS}:{BLANKS}{schema_regex(part)}' for name, part in schema["properties"].items()]
            return rf"\{{{BLANKS}{f'{BLANKS},{BLANKS}'.join(pairs)}{BLANKS}\}}"
        case "array":
            item, low, high = schema_regex(schema["items"]), schema["minItems"], schema["maxItems"]
            assert low >= 1
            return rf"\[{BLANKS}{item}({BLANKS},{BLANKS}{item}){{{low - 1},{high - 1}}}{BLANKS}\]"
        case "string":
            return f'"[ !#-\\[\\]-~]{{0,{schema["maxLength"]}}}"'
        case "integer":
            return "-?(0|[1-9][0-9]*)"
        case kind:
            return {"boolean": "(true|false)", "null": "null"}[kind]


def _quoted(value: str) -> str:
    return '"' + re.sub("([^a-z0-9])", r"\\\1", value) + '"'
