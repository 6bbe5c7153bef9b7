"""Who gets a KV slot, and how many prompt tokens each prefilling request computes in a step.

Decoding comes first: its rows are never held back, and prompts get a token budget beside them, the larger the more
requests are at their prompts. First come, first served throughout. Works on counts; knows no request and no cache.
"""

from collections.abc import Sequence

# Prompt-token budget of a step in which nothing decodes, in units of chunk_tokens: there is nobody to keep waiting.
# Between that and one unit it follows the batch: with a fixed budget speculation would empty it, since answers end in
# fewer steps and no more prompts begin per step.
IDLE_CHUNK_FACTOR = 4


def num_admitted(num_waiting: int, num_free_slots: int) -> int:
    """How many requests, from the head of the queue, get a slot now: all that fit, so no slot idles while one waits."""
    return min(num_waiting, num_free_slots)


def chunk_sizes(remaining_prompt: Sequence[int], num_decoding: int, chunk_tokens: int) -> list[int]:
    """Prompt tokens that each prefilling request computes in this step.

    `remaining_prompt`: prompt tokens not computed yet, at least 1 each, in arrival order. The first request is filled
    before the next gets any, so every step with prefilling requests makes progress and the first of them always does.
    """
    assert chunk_tokens >= 1 and all(remaining >= 1 for remaining in remaining_prompt)
    budget = chunk_budget(len(remaining_prompt), num_decoding, chunk_tokens)
    sizes = []
    for remaining in remaining_prompt:
        size = min(remaining, budget)
        sizes.append(size)
        budget -= size
    return sizes


def chunk_budget(num_prefilling: int, num_decoding: int, chunk_tokens: int) -> int:
    """Prompt tokens of a step: from `chunk_tokens` to IDLE_CHUNK_FACTOR times as many, by the share that prefills."""
    extra = (IDLE_CHUNK_FACTOR - 1) * chunk_tokens
    return chunk_tokens + extra * num_prefilling // max(num_prefilling + num_decoding, 1)
