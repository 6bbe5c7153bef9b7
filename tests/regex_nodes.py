"""Regexes by Brzozowski's derivatives, character by character.

A small part of regex syntax: letters and escaped signs, classes of ranges, groups, |, *, +, ?, {m}, {m,n}.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any


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


def parse(regex: str) -> Node:
    return _Parser(regex).alternatives()


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
