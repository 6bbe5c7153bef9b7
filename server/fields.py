"""Checks that several kinds of fields share."""

from collections.abc import Sequence
from typing import TypeVar

from echo_sched.errors import RequestError

T = TypeVar("T")


def check_list(field: str, num_given: int, num_prompts: int, is_list: bool) -> None:
    """A field with one value per prompt must go with a list of as many prompts. Raises RequestError naming it."""
    if not is_list:
        raise RequestError(f"{field} is a list, but the prompt is not", field)
    if num_given != num_prompts:
        raise RequestError(f"{field} has {num_given} entries for {num_prompts} prompts", field)


def each(field: str, given: T | list[T] | None, default: T, num_prompts: int, is_list: bool) -> list[T]:
    """One value per prompt, of a field that may be a list. Raises RequestError naming it."""
    if isinstance(given, list):
        check_list(field, len(given), num_prompts, is_list)
        return given
    return [default if given is None else given] * num_prompts


def check_ids(field: str, ids: Sequence[int], vocab_size: int) -> None:
    """Raises RequestError naming the first id outside the vocabulary."""
    for place, token_id in enumerate(ids):
        if not 0 <= token_id < vocab_size:
            message = f"{field}[{place}] is {token_id}, outside the vocabulary of {vocab_size} tokens"
            raise RequestError(message, f"{field}[{place}]")
