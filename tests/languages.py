"""What a regex or a JSON schema describes, the slow way: Brzozowski's derivatives, character by character.

The twin of engine/grammar.py, sharing nothing with it or its library. A small part of regex syntax: letters and escaped
signs, classes of ranges, groups, |, *, +, ?, {m}, {m,n}. Schemas are turned into regexes.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any

from tests.byte_text import texts


@dataclass(frozen=True, eq=False)
class Node:
    """A regex: what it is made of is made once (`node`), so that equal ones are the same and hashing costs nothing."""

    kind: str  # none: matches nothing; empty: ""; one: a character among parts; then: two in a row; or; star
    parts: tuple[Any, ...] = ()


@cache
def node(kind: str, *parts: Any) -> Node:
    return Node(kind, parts)


NONE = node("none")
EMPTY = node("empty")
BLANKS = "([ \n]{1,20})?"  # as bounded by engine/grammar.py; the tiny vocabulary has no other blanks


class RegexLanguage:
    """`echo_sched.engine.choice.Language` of a regex, over the tiny byte-level vocabulary."""

    def __init__(self, regex: str) -> None:
        self._start = _Parser(regex).alternatives()
        self._after = cache(self._read)  # what may follow these ids

    def begins(self, ids: Sequence[int]) -> bool:
        return self._after(tuple(ids)) is not NONE  # a node that matches nothing is always NONE

    def holds(self, ids: Sequence[int]) -> bool:
        return nullable(self._after(tuple(ids)))

    def _read(self, ids: tuple[int, ...]) -> Node:
        if not ids:
            return self._start
        text = texts()[ids[-1]]
        return NONE if text is None else reduce(derive, text, self._after(ids[:-1]))


def schema_language(schema: dict[str, Any]) -> RegexLanguage:
    return RegexLanguage(schema_regex(schema))


def schema_regex(schema: dict[str, Any]) -> str:
    """Of a schema made of objects with required properties, arrays, strings, integers, booleans, null and enums."""
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


# ---- nodes ----


def then(first: Node, second: Node) -> Node:
    if NONE in (first, second):
        return NONE
    return second if first is EMPTY else first if second is EMPTY else node("then", first, second)


def either(*nodes: Node) -> Node:
    flat = {part for one in nodes for part in (one.parts[0] if one.kind == "or" else (one,))} - {NONE}
    return NONE if not flat else flat.pop() if len(flat) == 1 else node("or", frozenset(flat))


@cache
def nullable(regex: Node) -> bool:
    match regex.kind:
        case "then":
            return all(nullable(part) for part in regex.parts)
        case "or":
            return any(nullable(part) for part in regex.parts[0])
        case kind:
            return kind in ("empty", "star")


@cache
def derive(regex: Node, character: str) -> Node:
    """What may follow `character`."""
    match regex.kind:
        case "one":
            return EMPTY if character in regex.parts[0] else NONE
        case "then":
            first, second = regex.parts
            rest = then(derive(first, character), second)
            return either(rest, derive(second, character)) if nullable(first) else rest
        case "or":
            return either(*(derive(part, character) for part in regex.parts[0]))
        case "star":
            return then(derive(regex.parts[0], character), regex)
        case _:
            return NONE


# ---- syntax ----


class _Parser:
    def __init__(self, regex: str) -> None:
        self._rest = list(regex)

    def alternatives(self) -> Node:
        nodes = [self._sequence()]
        while self._rest[:1] == ["|"]:
            self._rest.pop(0)
            nodes.append(self._sequence())
        return either(*nodes)

    def _sequence(self) -> Node:
        sequence = EMPTY
        while self._rest and self._rest[0] not in "|)":
            sequence = then(sequence, self._repeated(self._atom()))
        return sequence

    def _atom(self) -> Node:
        match self._rest.pop(0):
            case "(":
                group = self.alternatives()
                assert self._rest.pop(0) == ")"
                return group
            case "[":
                return self._class()
            case "\\":
                return node("one", frozenset(self._rest.pop(0)))
            case character:
                assert character not in "*+?{.^$"
                return node("one", frozenset(character))

    def _class(self) -> Node:
        characters: set[str] = set()
        while (first := self._rest.pop(0)) != "]":
            first = self._rest.pop(0) if first == "\\" else first
            last = first
            if self._rest[0] == "-":
                self._rest.pop(0)
                last = self._rest.pop(0)
                last = self._rest.pop(0) if last == "\\" else last
            characters |= {chr(code) for code in range(ord(first), ord(last) + 1)}
        return node("one", frozenset(characters))

    def _repeated(self, item: Node) -> Node:
        match self._rest[:1]:
            case ["*" | "+" | "?"]:
                sign = self._rest.pop(0)
                return {"*": node("star", item), "+": then(item, node("star", item)), "?": either(item, EMPTY)}[sign]
            case ["{"]:
                end = self._rest.index("}")
                bounds = "".join(self._rest[1:end]).split(",")
                del self._rest[: end + 1]
                return _between(item, int(bounds[0]), int(bounds[-1]))
        return item


def _between(item: Node, low: int, high: int) -> Node:
    result = EMPTY
    for _ in range(high - low):
        result = either(then(item, result), EMPTY)
    for _ in range(low):
        result = then(item, result)
    return result
