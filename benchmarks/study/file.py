"""The file of a study: written after every repeat of a block, whole or not at all, and continued where a run left off.

One line per entry, so that a difference between two versions can be read. Knows nothing of how trials are run.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from echo_sched.errors import ConfigError, DataError

# What may not change between the runs that fill one file. Versions, commit and costs may: each run notes its own.
IDENTITY = (
    "study",
    "quick",
    "max_new_tokens",
    "num_warmups",
    "turn_seconds",
    "engine",
    "profiles",
    "prompt_sets",
    "blocks",
)


class ResultsFile:
    """`head` describes the study as it is to be run now; cells of an earlier run of the same are kept.

    Raises ConfigError where the file is of something else, DataError where it cannot be read.
    """

    def __init__(self, path: Path, head: Mapping[str, Any], session: Mapping[str, Any]) -> None:
        self.path = path
        self.document: dict[str, Any] = {**head, "sessions": [], "references": {}, "cells": []}
        if path.exists():
            earlier = read_results(path)
            fresh = json.loads(json.dumps(head))
            for key in IDENTITY:
                if earlier.get(key) != fresh[key]:
                    raise ConfigError(f"{path} was measured with other {key}: name another --out, or remove it")
            self.document |= {key: earlier[key] for key in ("sessions", "references", "cells")}
        self.document["sessions"].append(dict(session))
        self._done = {(cell["repeat"], cell["block"]) for cell in self.document["cells"]}

    def has(self, repeat: int, block: str) -> bool:
        return (repeat, block) in self._done

    def reference(self, block: str) -> Sequence[Sequence[int]] | None:
        """Plain decoding's outputs in its first trial of a block."""
        outputs: Sequence[Sequence[int]] | None = self.document["references"].get(block)
        return outputs

    def set_reference(self, block: str, outputs: Sequence[Sequence[int]]) -> None:
        self.document["references"][block] = [list(output) for output in outputs]

    def append(self, cells: Sequence[Mapping[str, Any]]) -> None:
        """Add all trials of a repeat of a block and write the file. Raises ConfigError where it cannot be written."""
        self.document["cells"] += [{"session": len(self.document["sessions"]) - 1, **cell} for cell in cells]
        self._done |= {(cell["repeat"], cell["block"]) for cell in cells}
        part = self.path.with_name(self.path.name + ".part")
        try:
            part.write_text(_text(self.document), encoding="utf-8")
            os.replace(part, self.path)
        except OSError as error:
            raise ConfigError(f"cannot write {self.path}: {error.strerror}") from error


def read_results(path: Path) -> dict[str, Any]:
    """Raises DataError."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict) or "cells" not in document:
        raise DataError(f"{path} holds no study")
    return document


def _text(document: Mapping[str, Any]) -> str:
    return "{\n" + ",\n".join(f"{_json(key)}: {_entries(value)}" for key, value in document.items()) + "\n}\n"


def _entries(value: Any) -> str:
    if isinstance(value, dict) and value:
        return "{\n " + ",\n ".join(f"{_json(key)}: {_json(entry)}" for key, entry in value.items()) + "\n}"
    if isinstance(value, list) and value:
        return "[\n " + ",\n ".join(map(_json, value)) + "\n]"
    return _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
