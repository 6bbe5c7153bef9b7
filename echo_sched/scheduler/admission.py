"""Who gets a KV slot, and how many prompt tokens each prefilling request computes in a step.

Decoding comes first: its rows are never held back, and prompts get a token budget beside them. First come, first served
throughout. Works on counts; knows no request and no cache.
"""

from collections.abc import Sequence

# Prompt-token budget of a step in which nothing decodes, in units of chunk_tokens: there is nobody to keep waiting.
IDLE_CHUNK_FACTOR = 4


def num_admitted(num_waiting: int, num_free_slots: int) -> int:
    """How many requests, from the head of the queue, get a slot now: all that fit, so no slot idles while one waits."""
    return min(num_waiting, num_free_slots)


def chunk_sizes(remaining_prompt: Sequence[int], num_decoding: int, chunk_tokens: int) -> list[int]:
    """Prompt tokens that each prefilling request computes in this step.

    `remaining_prompt`: prompt tokens not computed yet, at least 1 each, in arrival order. The budget is `chunk_tokens`
    while anything decodes, IDLE_CHUNK_FACTOR times as much otherwise; the first request is filled before the next gets
    any, so every step with prefilling requests makes progress and the first of them always does.
    """
    assert chunk_tokens >= 1 and all(remaining >= 1 for remaining in remaining_prompt)
    budget = chunk_tokens if num_decoding else chunk_tokens * IDLE_CHUNK_FACTOR
    sizes = []
    for remaining in remaining_prompt:
        size = min(remaining, budget)
        sizes.append(size)
        budget -= size
    return sizes
