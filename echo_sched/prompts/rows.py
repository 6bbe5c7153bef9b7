"""One row of a prompt file, in any of the common layouts, as a prompt. Knows no file."""

from collections.abc import Mapping
from typing import Any, NamedTuple

CHAT_FIELDS = ("messages", "conversations", "conversation")
TEXT_FIELDS = ("prompt", "question", "instruction", "query", "text")
KNOWN_FIELDS = (*CHAT_FIELDS, "turns", *TEXT_FIELDS)
ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "gpt", "model", "bot", "chatgpt"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation"), "tool"),
}

Message = dict[str, str]  # {"role": one of ROLES' values, "content": text}


class Prompt(NamedTuple):
    """One prompt: either `text`, or `messages` ({"role", "content"}) that end with a user message."""

    text: str | None
    messages: tuple[Message, ...] | None
    source_row: int  # line of the file, or position in the array; both count from 1
    category: str | None


class BadRow(Exception):
    """This row is no prompt; the message is the reason it is counted under."""


def read_row(row: Any, number: int) -> Prompt:
    """`number`: where it stands in its file, for `Prompt.source_row`. Raises BadRow."""
    if isinstance(row, BadRow):
        raise row
    if isinstance(row, str):
        return Prompt(_text(row), None, number, None)
    if not isinstance(row, dict):
        raise BadRow("neither an object nor a string")
    category = next((row[name] for name in ("category", "source") if isinstance(row.get(name), str)), None)
    content = _content(row)
    if isinstance(content, str):
        return Prompt(content, None, number, category)
    return Prompt(None, _cut(content), number, category)


def _content(row: Mapping[str, Any]) -> str | list[Message]:
    """The row's text, or its chat where it is one or has a system message or a history."""
    field = next((name for name in KNOWN_FIELDS if row.get(name) is not None), None)
    if field is None:
        raise BadRow("no known field")
    value = row[field]
    if field in CHAT_FIELDS or (field == "prompt" and isinstance(value, list)):
        chat = _chat(value)
        return chat if chat[0]["role"] == "system" else _system(row) + chat
    is_message = field == "text" and isinstance(row.get("role"), str)  # one row of a flat chat
    if is_message and ROLES.get(row["role"]) != "user":
        raise BadRow("a message that is not a user's")
    if field == "turns":
        text = _first_turn(value)
    elif field == "instruction":
        text = _instruction(row)
    else:
        text = _text(value)
    before = _system(row) + _history(row)
    return [*before, _message("user", text)] if before or is_message or field == "turns" else text


def _cut(chat: list[Message]) -> tuple[Message, ...]:
    """The chat up to its last user message: that is what is left to answer."""
    last = max((index for index, message in enumerate(chat) if message["role"] == "user"), default=None)
    if last is None:
        raise BadRow("no user message")
    _text(chat[last]["content"])
    return tuple(chat[: last + 1])


def _chat(value: Any) -> list[Message]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise BadRow("wrong type")
    chat: list[Message] = []
    for item in value:
        if "human" in item:
            chat += [_message("user", item["human"]), _message("assistant", item.get("assistant"))]
        else:
            chat.append(_message(item.get("role", item.get("from")), item.get("content", item.get("value"))))
    if not chat:
        raise BadRow("no user message")
    return chat


def _message(role: Any, content: Any) -> Message:
    """A message may be empty (an assistant that only called a tool); the one to answer may not, see _cut."""
    if not isinstance(role, str) or role not in ROLES:
        raise BadRow("unknown role")
    return {"role": ROLES[role], "content": "" if content is None else _string(content)}


def _system(row: Mapping[str, Any]) -> list[Message]:
    system = row.get("system")
    return [_message("system", system)] if system else []


def _history(row: Mapping[str, Any]) -> list[Message]:
    """Earlier turns as ms-swift and Alpaca-style files keep them: a list of [user, assistant]."""
    pairs = row.get("history") or []
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise BadRow("wrong type")
    roles = ("user", "assistant")
    return [_message(role, content) for pair in pairs for role, content in zip(roles, pair, strict=True)]


def _first_turn(turns: Any) -> str:
    if not isinstance(turns, list):
        raise BadRow("wrong type")
    first = turns[0] if turns else ""
    return _text(first.get("content") if isinstance(first, dict) else first)


def _instruction(row: Mapping[str, Any]) -> str:
    """The instruction and, below it, its input (self-instruct keeps that in `instances`)."""
    given = row.get("input")
    instances = row.get("instances")
    if given is None and isinstance(instances, list) and instances and isinstance(instances[0], dict):
        given = instances[0].get("input")
    parts = [_text(row["instruction"]), "" if given is None else _string(given)]
    return "\n\n".join(part for part in parts if part.strip())


def _text(value: Any) -> str:
    text = _string(value)
    if not text.strip():
        raise BadRow("empty text")
    return text


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise BadRow("wrong type")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRow("text that is not valid Unicode") from None
    return value
