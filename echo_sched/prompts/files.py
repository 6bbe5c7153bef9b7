"""Prompt files: JSON Lines or one JSON document, gzipped or not.

A row that cannot be read is counted with its reason and never fatal.
"""

import gzip
import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from echo_sched.errors import ConfigError, DataError
from echo_sched.prompts.rows import KNOWN_FIELDS, BadRow, Prompt, read_row

GZIP_MAGIC = b"\x1f\x8b"
TABLES = (".tsv", ".csv", ".parquet")


class PromptFile(NamedTuple):
    """What a file held. Rows after the last prompt that was wanted are neither read nor counted."""

    prompts: list[Prompt]
    num_bad_rows: int
    bad_row_reasons: dict[str, int]  # reason -> rows
    sha256: str  # of the file's bytes as they are on disk


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
            prompts.append(read_row(row, number))
        except BadRow as bad:
            reasons[str(bad)] += 1
    if not prompts:
        raise DataError(f"{path}: no usable prompt: {_seen(reasons)}")
    return PromptFile(prompts, reasons.total(), dict(reasons), hashlib.sha256(raw).hexdigest())


def load_rows(path: str | Path) -> dict[int, Any]:
    """Every row that is JSON, by the number that `Prompt.source_row` has. Raises DataError, as load_prompts does."""
    path = Path(path)
    rows = _rows(_decompress(_read(path), path), path)
    return {number: row for number, row in rows if not isinstance(row, BadRow)}


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
    """(number, value) of each row: the items of one JSON document, or the lines. A BadRow stands for a broken line."""
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
        return BadRow("not JSON")


def _seen(reasons: Counter[str]) -> str:
    if not reasons:
        return "the file holds no rows"
    counts = ", ".join(f"{reason}: {count}" for reason, count in reasons.most_common())
    return f"{reasons.total()} rows read ({counts}); expected one of the fields {', '.join(KNOWN_FIELDS)}"
