"""The two sizes in which the proof runs."""

from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Sized(NamedTuple):
    """`sized(small, full)` is the value for the size of this run."""

    is_full: bool

    def __call__(self, small: T, full: T) -> T:
        return full if self.is_full else small
