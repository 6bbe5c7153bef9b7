"""Which children a drafter's probabilities q make, and with what chance: coupled to the race that chooses the token.

A sampled token is the winner of a race whose random numbers E = -ln u depend on (seed, position, token) alone
(race.py), so they are known before anything is drafted. The target picks the highest `logit - T ln E`; guessed from q:

    chance of token i  ~  q_i * E_i ** (-NOISE_SHARE * T)

With a share of 1 this is the race run on q, as in drafter-invariant speculative decoding (Daliri et al., arXiv
2408.07978); less than 1, since q is only near the target's distribution. Greedy requests have no race and keep q.
What is offered never changes a token: acceptance draws from the target alone.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from echo_sched.engine.race import HEAD_SIZE, HEAD_STREAM, uniforms
from echo_sched.tree import ROOT, BoolArray, DraftTree, FloatArray, IntArray, Offers
from echo_sched.types import Request, SamplingParams

NOISE_SHARE = 0.7  # fitted on SmolLM2 and its head (docs/log.md)
MAX_TEMPERATURE = 10.0  # hotter than this the race alone decides, and powers of E would overflow


class Draw(NamedTuple):
    """How the token that a child stands for will be chosen."""

    params: SamplingParams
    position: int  # its index in prompt + output


def offer_children(
    requests: Sequence[Request],
    trees: Sequence[DraftTree],
    nodes: Sequence[tuple[int, int]],
    logits: Tensor,
    target_ids: Tensor,
    max_children: int,
    *,
    coupled: bool,
) -> Offers:
    """The best children of every node (request index, node or ROOT), best first.

    logits [F, D]: of the draft tokens after each node; target_ids [D]: what the target calls them.
    """
    draws = [
        Draw(requests[index].params, requests[index].num_tokens + (0 if node == ROOT else trees[index].depths[node]))
        for index, node in nodes
    ]
    tokens, logps = best_children(logits, target_ids, draws, max_children, coupled=coupled)
    count = tokens.shape[1]
    path_logp = np.array([0.0 if node == ROOT else trees[index].path_logps[node] for index, node in nodes])
    return Offers(
        request=np.repeat(np.array([index for index, _ in nodes], np.int64), count),
        parent=np.repeat(np.array([node for _, node in nodes], np.int64), count),
        token=tokens.reshape(-1),
        path_logp=(path_logp[:, None] + logps).reshape(-1),
    )


def best_children(
    logits: Tensor, target_ids: Tensor, draws: Sequence[Draw], max_children: int, *, coupled: bool
) -> tuple[IntArray, FloatArray]:
    """Tokens [F, C] and the logs of their chances [F, C], best first; C = min(max_children, D)."""
    logps = torch.log_softmax(logits.float(), dim=-1)
    sampled = [row for row, draw in enumerate(draws) if coupled and not draw.params.greedy]
    num_candidates = max(max_children, HEAD_SIZE) if sampled else max_children
    best = logps.topk(min(num_candidates, logps.shape[-1]))
    tokens, values = target_ids[best.indices].cpu().numpy(), best.values.double().cpu().numpy()
    if sampled:
        values[sampled] = _coupled(values[sampled], tokens[sampled], [draws[row] for row in sampled])
        order = np.argsort(-values, axis=1, kind="stable")
        tokens, values = np.take_along_axis(tokens, order, axis=1), np.take_along_axis(values, order, axis=1)
    return tokens[:, :max_children], values[:, :max_children]


def _coupled(logps: FloatArray, tokens: IntArray, draws: Sequence[Draw]) -> FloatArray:
    """Logs of chances [S, H] of the leading candidates, given their log q, descending, and how they will be drawn.

    All other tokens keep their q, so that chances are shares of a whole.
    """
    seeds = np.array([draw.params.seed for draw in draws], np.uint64)
    positions = np.array([draw.position for draw in draws], np.int64)
    temperatures = np.array([min(draw.params.temperature, MAX_TEMPERATURE) for draw in draws])
    clocks = -np.log(uniforms(seeds[:, None], positions[:, None], tokens, HEAD_STREAM))
    help_ = -NOISE_SHARE * temperatures[:, None] * np.log(clocks)
    inside = np.array([_support(row, draw.params) for row, draw in zip(logps, draws, strict=True)])
    # Early arrival is worth nothing to tokens that are filtered out, and who is alone need not run.
    help_ = np.where(inside, help_, np.minimum(help_, 0.0))
    help_[inside.sum(axis=1) == 1] = 0.0
    raced = logps + help_
    rest = np.maximum(1.0 - np.exp(logps).sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    top = raced.max(axis=1, keepdims=True)
    whole = np.logaddexp(top + np.log(np.exp(raced - top).sum(axis=1, keepdims=True)), np.log(rest))
    return np.asarray(np.minimum(raced - whole, 0.0))


def _support(logps: FloatArray, params: SamplingParams) -> BoolArray:
    """Which of the leading candidates [H] top-k, top-p and min-p would leave, if q were the target's distribution."""
    weights = np.exp((logps - logps[0]) / params.temperature)
    before = np.cumsum(weights) - weights
    inside: BoolArray = (weights >= params.min_p) & (before < params.top_p * weights.sum())
    if params.top_k != -1:
        inside[params.top_k :] = False
    return inside
