"""Strict reading of JSON objects: nothing missing, nothing unknown, every error names the key.

Knows JSON's types and ranges of numbers, not what the numbers mean.
"""

import math
import sys
from collections.abc import Collection, Iterator
from typing import Any

from echo_sched.errors import ProfileError


class Fields:
    """One JSON object. `where` is the path to it, such as `checkpoints[1]`; "" for the document itself.

    Every method raises ProfileError, naming the key, for a value of another type or out of range.
    """

    def __init__(self, data: object, where: str, keys: Collection[str], optional_keys: Collection[str] = ()) -> None:
        self._where = where
        if not isinstance(data, dict):
            raise ProfileError(f"{where or 'the document'} must be an object, got {_shown(data)}")
        self._data: dict[str, Any] = data
        for key in keys:
            if key not in data:
                raise ProfileError(f"{self._path(key)} is missing")
        for key in data:
            if key not in keys and key not in optional_keys:
                raise ProfileError(f"{where or 'the document'} has an unknown key {_shown(key)}")

    def has(self, key: str) -> bool:
        """Whether an optional key is there."""
        return key in self._data

    def text(self, key: str) -> str:
        value = self._data[key]
        if not isinstance(value, str) or not value:
            raise self._wrong(key, "must be a non-empty string")
        return value

    def optional_text(self, key: str) -> str | None:
        return None if self._data[key] is None else self.text(key)

    def integer(self, key: str, minimum: int) -> int:
        value = self._data[key]
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise self._wrong(key, f"must be an integer of at least {minimum}")
        return value

    def number(self, key: str, low: float = 0.0, high: float = math.inf) -> float:
        value = self._data[key]
        if not is_number(value) or not low <= value <= high:
            raise self._wrong(key, f"must be a number in [{low:g}, {high:g}]")
        return float(value)

    def optional_number(self, key: str, low: float = 0.0, high: float = math.inf) -> float | None:
        return None if self._data[key] is None else self.number(key, low, high)

    def list_of(self, key: str) -> list[Any]:
        value = self._data[key]
        if not isinstance(value, list):
            raise self._wrong(key, "must be a list")
        return value

    def numbers(self, key: str) -> tuple[float, ...]:
        values = self.list_of(key)
        if not all(is_number(value) for value in values):
            raise self.error(key, "must be a list of finite numbers")
        return tuple(float(value) for value in values)

    def free_object(self, key: str) -> dict[str, Any]:
        """An object whose keys are nobody's business here."""
        value = self._data[key]
        if not isinstance(value, dict):
            raise self._wrong(key, "must be an object")
        return value

    def object(self, key: str, keys: Collection[str]) -> "Fields":
        return Fields(self._data[key], self._path(key), keys)

    def optional_object(self, key: str, keys: Collection[str], optional_keys: Collection[str] = ()) -> "Fields | None":
        return None if self._data[key] is None else Fields(self._data[key], self._path(key), keys, optional_keys)

    def objects(self, key: str, keys: Collection[str]) -> Iterator["Fields"]:
        for index, item in enumerate(self.list_of(key)):
            yield Fields(item, f"{self._path(key)}[{index}]", keys)

    def error(self, key: str, rule: str) -> ProfileError:
        """For rules that only the caller knows; to be raised."""
        return ProfileError(f"{self._path(key)} {rule}")

    def _wrong(self, key: str, rule: str) -> ProfileError:
        return self.error(key, f"{rule}, got {_shown(self._data[key])}")

    def _path(self, key: str) -> str:
        return f"{self._where}.{key}" if self._where else key


def is_number(value: object) -> bool:
    """A finite number that a float can hold (JSON also brings true, NaN, Infinity and integers of any length)."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
