"""Draws the tokens of a step: who draws, from which rows of logits, and what becomes of each token."""

from collections.abc import Mapping, Sequence, Set

from torch import Tensor

from echo_sched.engine.accept import Sampler, Walk, accept
from echo_sched.engine.grammar import Grammar
from echo_sched.loop.emission import Output, emit_token
from echo_sched.loop.rows import Chunk
from echo_sched.tree import DraftTree
from echo_sched.types import FinishReason, Request


def walks_of(
    decoding: Sequence[Request],
    trees: Sequence[DraftTree],
    chunks: Sequence[Chunk],
    logit_start: Sequence[int],
    outputs: Mapping[str, Output],
) -> list[tuple[Request, Walk]]:
    """Everybody who draws a token: decoding requests, then those whose prompt ends here (a tree without nodes).

    `logit_start[s]` is the first logit row of segment s; segments are the trees, then the chunks.
    """
    drawing = list(zip(decoding, trees, logit_start[: len(decoding)], strict=True))
    for segment, chunk in enumerate(chunks, start=len(decoding)):
        if chunk.finishes_prompt:
            drawing.append((chunk.request, DraftTree(), logit_start[segment + 1] - 1))
    return [
        (request, Walk(tree, request.params, request.num_tokens, first_row, outputs[request.request_id].history))
        for request, tree, first_row in drawing
    ]


def draw_tokens(
    walks: Sequence[tuple[Request, Walk]],
    logits: Tensor,
    sampler: Sampler,
    outputs: Mapping[str, Output],
    eos_ids: Set[int],
) -> tuple[list[list[int]], list[list[int]]]:
    """Draw tokens down every tree. Returns the new tokens and the accepted nodes of each walk."""
    emitted: list[list[int]] = [[] for _ in walks]

    def emit(index: int, token: int) -> bool:
        request = walks[index][0]
        emitted[index].append(token)
        return emit_token(request, token, outputs[request.request_id], eos_ids) is not None

    def fail(index: int) -> None:
        request = walks[index][0]
        reason = _obstacle(outputs[request.request_id].grammar)
        request.finish = FinishReason("abort", message=f"no token can be drawn: {reason}")

    return emitted, accept(logits, [walk for _, walk in walks], sampler, emit, fail)


def _obstacle(grammar: Grammar | None) -> str:
    """Why no token can be drawn."""
    if grammar is None:
        return "the logits are not finite"
    if grammar.error is not None:
        return f"the grammar is too complex here ({grammar.error})"
    if not grammar.allowed.any():
        return "no token of this vocabulary continues the grammar"
    return "other fields rule out what the grammar allows, or the logits are not finite"
