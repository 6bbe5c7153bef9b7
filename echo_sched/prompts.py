"""Reads prompt files of every common layout, and turns one prompt into token ids.

A file is JSON Lines or one JSON document, gzipped or not. A row is one prompt: plain text, or a chat that is cut after
its last user message. A row that cannot be read is counted with its reason and never fatal.
Nothing here knows torch, transformers or what the prompts are for; the tokenizer is a Protocol.
"""

import gzip
import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from echo_sched.errors import ConfigError, DataError

ChatTemplate = Literal["auto", "always", "never"]

GZIP_MAGIC = b"\x1f\x8b"
CHAT_FIELDS = ("messages", "conversations", "conversation")
TEXT_FIELDS = ("prompt", "question", "instruction", "query", "text")
KNOWN_FIELDS = (*CHAT_FIELDS, "turns", *TEXT_FIELDS)
ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "gpt", "model", "bot", "chatgpt"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation"), "tool"),
}
TABLES = (".tsv", ".csv", ".parquet")

Message = dict[str, str]  # {"role": one of ROLES' values, "content": text}


class Prompt(NamedTuple):
    """One prompt: either `text`, or `messages` ({"role", "content"}) that end with a user message."""

    text: str | None
    messages: tuple[Message, ...] | None
    source_row: int  # line of the file, or position in the array; both count from 1
    category: str | None


class PromptFile(NamedTuple):
    """What a file held. Rows after the last prompt that was wanted are neither read nor counted."""

    prompts: list[Prompt]
    num_bad_rows: int
    bad_row_reasons: dict[str, int]  # reason -> rows
    sha256: str  # of the file's bytes as they are on disk


class Tokenizer(Protocol):
    """The little of a transformers tokenizer that is used here."""

    @property
    def chat_template(self) -> Any: ...

    def apply_chat_template(self, conversation: Any, *, tokenize: bool, add_generation_prompt: bool) -> Any: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> Any: ...


class _BadRow(Exception):
    """This row is no prompt; the message is the reason it is counted under."""


def load_prompts(path: str | Path, *, max_prompts: int | None = None) -> PromptFile:
    """Read at most `max_prompts` prompts of a file, in order.

    Fields, the first that is there wins: messages, conversations, conversation (OpenAI's role/content, ShareGPT's
    from/value, human/assistant pairs), turns (the first is used), prompt, question, instruction (with input), query,
    text; `system` and `history` belong to whichever it is. A bare JSON string is a text prompt.
    Raises DataError when the file cannot be read or holds no usable row, ConfigError for max_prompts below 1.
    """
    if max_prompts is not None and max_prompts < 1:
        raise ConfigError(f"max_prompts must be at least 1, got {max_prompts}")
    path = Path(path)
    raw = _read(path)
    prompts: list[Prompt] = []
    reasons: Counter[str] = Counter()
    for number, row in _rows(_decompress(raw, path), path):
        if len(prompts) == max_prompts:
            break
        try:
            prompts.append(_prompt(row, number))
        except _BadRow as bad:
            reasons[str(bad)] += 1
    if not prompts:
        raise DataError(f"{path}: no usable prompt: {_seen(reasons)}")
    return PromptFile(prompts, reasons.total(), dict(reasons), hashlib.sha256(raw).hexdigest())


def load_rows(path: str | Path) -> dict[int, Any]:
    """Every row that is JSON, by the number that `Prompt.source_row` has. Raises DataError, as load_prompts does."""
    path = Path(path)
    rows = _rows(_decompress(_read(path), path), path)
    return {number: row for number, row in rows if not isinstance(row, _BadRow)}


def encode_prompt(tokenizer: Tokenizer, prompt: Prompt, chat_template: ChatTemplate = "auto") -> list[int]:
    """Token ids of a prompt.

    auto: the tokenizer's chat template where the prompt is a chat and the tokenizer has one; always: text becomes a
    user message; never: the contents of a chat, joined by blank lines. A template writes its own special tokens (BOS
    among them), so the tokenizer adds none to what a template wrote.
    Raises DataError when a template is demanded and there is none, or when it refuses the messages.
    """
    if chat_template == "always" and not tokenizer.chat_template:
        raise DataError("the tokenizer has no chat template, so chat_template 'always' cannot be followed")
    chat = prompt.messages or ({"role": "user", "content": prompt.text or ""},)
    templated = chat_template == "always" or (chat_template == "auto" and prompt.messages and tokenizer.chat_template)
    if not templated:
        text = "\n\n".join(message["content"] for message in chat)
        return list(tokenizer.encode(text, add_special_tokens=True))
    try:
        rendered = tokenizer.apply_chat_template(list(chat), tokenize=False, add_generation_prompt=True)
    except Exception as error:  # a template is code that came with the checkpoint and may raise anything
        roles = ", ".join(message["role"] for message in chat)
        reason = " ".join(str(error).split())
        raise DataError(f"row {prompt.source_row}: the chat template refuses the roles {roles}: {reason}") from error
    return list(tokenizer.encode(rendered, add_special_tokens=False))


def _read(path: Path) -> bytes:
    if path.name.lower().removesuffix(".gz").endswith(TABLES):
        raise DataError(f'{path}: tables are not read; write one JSON object per line, such as {{"prompt": "..."}}')
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def _decompress(raw: bytes, path: Path) -> str:
    """Text of the file. Bytes that are not UTF-8 become lone surrogates, which spoil their own row only."""
    if raw.startswith(GZIP_MAGIC):
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"cannot read {path}: damaged gzip file ({error})") from error
    return raw.decode("utf-8", errors="surrogateescape").removeprefix("\ufeff")


def _rows(text: str, path: Path) -> Iterator[tuple[int, Any]]:
    """(number, value) of each row: the items of one JSON document, or the lines. A _BadRow stands for a broken line."""
    start = len(text) - len(text.lstrip())
    try:
        document, end = json.JSONDecoder().raw_decode(text, start)
    except json.JSONDecodeError as error:
        if text.startswith("[", start) and "\n" in text[start : error.pos].rstrip():
            raise DataError(f"{path}: a JSON array that breaks off or is malformed ({error})") from error
    except (ValueError, RecursionError):
        pass  # a first line beyond the parser's limits is one bad row
    else:
        if not text[end:].strip():
            yield from enumerate(document if isinstance(document, list) else [document], start=1)
            return
    for number, line in enumerate(text.split("\n"), start=1):  # not splitlines(): U+2028 may stand inside a string
        if line.strip():
            yield number, _parse(line)


def _parse(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return _BadRow("not JSON")


def _prompt(row: Any, number: int) -> Prompt:
    """Raises _BadRow."""
    if isinstance(row, _BadRow):
        raise row
    if isinstance(row, str):
        return Prompt(_text(row), None, number, None)
    if not isinstance(row, dict):
        raise _BadRow("neither an object nor a string")
    category = next((row[name] for name in ("category", "source") if isinstance(row.get(name), str)), None)
    content = _content(row)
    if isinstance(content, str):
        return Prompt(content, None, number, category)
    return Prompt(None, _cut(content), number, category)


def _content(row: Mapping[str, Any]) -> str | list[Message]:
    """The row's text, or its chat where it is one or has a system message or a history."""
    field = next((name for name in KNOWN_FIELDS if row.get(name) is not None), None)
    if field is None:
        raise _BadRow("no known field")
    value = row[field]
    if field in CHAT_FIELDS or (field == "prompt" and isinstance(value, list)):
        chat = _chat(value)
        return chat if chat[0]["role"] == "system" else _system(row) + chat
    is_message = field == "text" and isinstance(row.get("role"), str)  # one row of a flat chat
    if is_message and ROLES.get(row["role"]) != "user":
        raise _BadRow("a message that is not a user's")
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
        raise _BadRow("no user message")
    _text(chat[last]["content"])
    return tuple(chat[: last + 1])


def _chat(value: Any) -> list[Message]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise _BadRow("wrong type")
    chat: list[Message] = []
    for item in value:
        if "human" in item:
            chat += [_message("user", item["human"]), _message("assistant", item.get("assistant"))]
        else:
            chat.append(_message(item.get("role", item.get("from")), item.get("content", item.get("value"))))
    if not chat:
        raise _BadRow("no user message")
    return chat


def _message(role: Any, content: Any) -> Message:
    """A message may be empty (an assistant that only called a tool); the one to answer may not, see _cut."""
    if not isinstance(role, str) or role not in ROLES:
        raise _BadRow("unknown role")
    return {"role": ROLES[role], "content": "" if content is None else _string(content)}


def _system(row: Mapping[str, Any]) -> list[Message]:
    system = row.get("system")
    return [_message("system", system)] if system else []


def _history(row: Mapping[str, Any]) -> list[Message]:
    """Earlier turns as ms-swift and Alpaca-style files keep them: a list of [user, assistant]."""
    pairs = row.get("history") or []
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise _BadRow("wrong type")
    roles = ("user", "assistant")
    return [_message(role, content) for pair in pairs for role, content in zip(roles, pair, strict=True)]


def _first_turn(turns: Any) -> str:
    if not isinstance(turns, list):
        raise _BadRow("wrong type")
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
        raise _BadRow("empty text")
    return text


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise _BadRow("wrong type")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise _BadRow("text that is not valid Unicode") from None
    return value


def _seen(reasons: Counter[str]) -> str:
    if not reasons:
        return "the file holds no rows"
    counts = ", ".join(f"{reason}: {count}" for reason, count in reasons.most_common())
    return f"{reasons.total()} rows read ({counts}); expected one of the fields {', '.join(KNOWN_FIELDS)}"
