"""One token's choice, the naive way: sort everything, cut no corner. And how far that choice is from another one.

The slow twin of sampling.py, sharing only the keyed random numbers with it. A fork between two engines is numerical
iff the margin at the fork is tiny. Knows nothing of models or tensors.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from echo_sched.engine.race import HEAD_SIZE, HEAD_STREAM, TAIL_ID, TAIL_STREAM, uniforms
from echo_sched.tree import FloatArray, IntArray
from echo_sched.types import SamplingParams


class Language(Protocol):
    """What a JSON schema or a regex allows, asked about whole outputs only, each time from the start."""

    def begins(self, ids: Sequence[int]) -> bool:
        """Whether some output begins with `ids`: their text may go on to one of the language, and where text is forced
        it is cut as the tokenizer cuts it. False with an id that has no text."""
        ...

    def holds(self, ids: Sequence[int]) -> bool:
        """Whether the text of `ids` is in the language."""
        ...


def processed(
    logits: FloatArray,
    params: SamplingParams,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    eos_ids: Sequence[int],
    language: Language | None = None,
) -> FloatArray:
    """Logits [V] as the model gave them after `prompt_ids` and `output_ids` -> [V] as temperature finds them."""
    row = logits.copy()
    for token in {*prompt_ids, *output_ids}:
        x = logits[token]
        row[token] = x / params.repetition_penalty if x > 0.0 else x * params.repetition_penalty
    for token in set(output_ids):
        row[token] -= params.frequency_penalty * output_ids.count(token)
        row[token] -= params.presence_penalty
    for token, bias in params.logit_bias:
        row[token] += bias
    ruled_out = set(params.bad_token_ids)
    if params.allowed_token_ids is not None:
        ruled_out |= set(range(row.size)) - set(params.allowed_token_ids)
    if len(output_ids) < params.min_new_tokens:
        ruled_out |= {*params.stop_token_ids, *(() if params.ignore_eos else eos_ids)}
    if language is not None:
        fitting = continuations(language, output_ids, row.size)
        ends = {*params.stop_token_ids, *(() if params.ignore_eos else eos_ids)}
        ruled_out |= set(range(row.size)) - fitting - (ends if language.holds(output_ids) else set())
    row[sorted(ruled_out)] = -np.inf
    return row


def continuations(language: Language, output_ids: Sequence[int], vocab_size: int) -> set[int]:
    """The tokens with which the output still is the beginning of a text of the language."""
    return {token for token in range(vocab_size) if language.begins([*output_ids, token])}


def final_distribution(logits: FloatArray, params: SamplingParams) -> FloatArray:
    """p [V] of processed logits after temperature, top-k, top-p and min-p in that order, each acting on what the one
    before left.

    The nucleus is the shortest prefix that reaches top_p; min-p is relative to the highest probability; ties at a
    boundary stay by lowest id (transformers keeps all tokens that tie at the top-k boundary). Not for greedy
    parameters.
    """
    order = np.argsort(-logits, kind="stable")
    scaled = logits[order] / params.temperature
    weights = np.exp(scaled - scaled[0])
    if params.top_k != -1:
        weights[params.top_k :] = 0.0
    if params.top_p < 1.0:
        shares = np.cumsum(weights)
        weights[1:][shares[:-1] >= params.top_p * shares[-1]] = 0.0
    weights[weights < params.min_p] = 0.0
    p: FloatArray = np.zeros(weights.size)
    p[order] = weights / weights.sum()
    return p


def draw(logits: FloatArray, params: SamplingParams, position: int) -> int:
    """The token at `position` of prompt + output, drawn from processed logits [V] (float64)."""
    if params.greedy:
        return int(np.argmax(logits))
    p = final_distribution(logits, params)
    order = np.argsort(-logits, kind="stable")
    head, tail = order[:HEAD_SIZE], order[HEAD_SIZE:]
    winner, time = _first(p[head], params, position, head, HEAD_STREAM)
    _, tail_time = _first(p[tail].sum(keepdims=True), params, position, np.array([TAIL_ID]), HEAD_STREAM)
    if tail_time < time:
        winner, _ = _first(p[tail], params, position, tail, TAIL_STREAM)
    return winner


def margin(logits: FloatArray, params: SamplingParams, position: int) -> float:
    """The smallest change, counted in processed logits, that makes `draw` return another token (inf where none does).

    Greedy: the gap between the two highest logits. Sampled: another token wins by arriving earlier, by entering the
    support or the head, or because the winner leaves them. Racing i against w costs `T ln(t_i / t_w)`; crossing the
    top-k or head boundary costs the logit gap across it; min-p, the gap to its cut-off; top-p, `T` times the gap
    between the log odds of the mass before the token and of top_p (log odds move as fast as logits do). A rival
    that needs several changes costs the largest of them. A token that is ruled out (-inf) is no rival.
    """
    order = np.argsort(-logits, kind="stable")  # ids by rank; every array below is in this order
    order = order[np.isfinite(logits[order])]
    ranked = logits[order]
    if params.greedy:
        return float(ranked[0] - ranked[1]) if ranked.size > 1 else np.inf
    p = final_distribution(logits, params)[order]
    inside = p > 0.0
    has_tail = np.count_nonzero(inside) > HEAD_SIZE
    in_head = (np.arange(ranked.size) < HEAD_SIZE) | (not has_tail)
    leave = np.abs(_support_slack(ranked, params))
    cross = np.full(ranked.size, np.inf)
    if has_tail:
        cross = np.abs(ranked - np.where(in_head, ranked[HEAD_SIZE], ranked[HEAD_SIZE - 1]))
    enter = np.where(inside, 0.0, leave)

    weights = np.exp((ranked - ranked[0]) / params.temperature)
    weights /= weights[inside].sum()
    own = _times(weights, params, position, order, HEAD_STREAM)  # had each token its own place in the head
    _, tail_time = _first(p[HEAD_SIZE:].sum(keepdims=True), params, position, np.array([TAIL_ID]), HEAD_STREAM)
    best = own[inside & in_head].min()
    later = _logit_delay(own, min(best, tail_time), params)
    costs = np.maximum(np.maximum(later, enter), np.where(in_head, 0.0, cross))
    if best <= tail_time:
        winner = int(np.flatnonzero(inside & in_head & (own == best))[0])
        nearest = _logit_delay(np.array([tail_time]), best, params)[0]
    else:
        inner = _times(weights, params, position, order, TAIL_STREAM)
        winner = int(np.flatnonzero(inside & ~in_head & (inner == inner[inside & ~in_head].min()))[0])
        later = np.maximum(_logit_delay(inner, inner[winner], params), np.where(in_head, cross, 0.0))
        costs = np.minimum(costs, np.maximum(later, enter))
        nearest = np.inf
    costs[weights == 0.0] = np.inf
    costs[winner] = min(leave[winner], cross[winner])
    return float(min(nearest, costs.min()))


def _first(p: FloatArray, params: SamplingParams, position: int, ids: IntArray, stream: int) -> tuple[int, float]:
    """Who of `ids` arrives first, ties to the lowest id, and when."""
    times = _times(p, params, position, ids, stream)
    place = np.lexsort((ids, times))[0]
    return int(ids[place]), float(times[place])


def _times(p: FloatArray, params: SamplingParams, position: int, ids: IntArray, stream: int) -> FloatArray:
    """Arrival times -ln(u) / p; never (inf) where p is 0."""
    clocks = -np.log(uniforms(params.seed, position, ids, stream))
    times: FloatArray = np.full(p.shape, np.inf)
    with np.errstate(over="ignore"):
        return np.divide(clocks, p, out=times, where=p > 0.0)


def _logit_delay(times: FloatArray, best: float, params: SamplingParams) -> FloatArray:
    """How much a token's logit would have to rise for it to arrive at `best`; 0 where it is there already."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.maximum(params.temperature * (np.log(times) - np.log(best)), 0.0))


def _support_slack(ranked: FloatArray, params: SamplingParams) -> FloatArray:
    """Distance [V] of each rank from the edge of the support, in logits: positive inside, negative outside."""
    size = ranked.size
    slack = np.full(size, np.inf)
    kept = size if params.top_k == -1 else min(params.top_k, size)
    if kept < size:
        slack = ranked - np.where(np.arange(size) < kept, ranked[kept], ranked[kept - 1])
    if params.top_p < 1.0:
        slack = np.minimum(slack, _nucleus_slack(ranked, kept, params))
    if params.min_p > 0.0:
        cut_off = ranked - ranked[0] - params.temperature * np.log(params.min_p)
        cut_off[0] -= ranked[1] - ranked[0] if size > 1 else -np.inf  # the top token falls only below another's share
        slack = np.minimum(slack, cut_off)
    return slack


def _nucleus_slack(ranked: FloatArray, kept: int, params: SamplingParams) -> FloatArray:
    """Distance [V] of each rank from the edge of the nucleus of the first `kept` ranks.

    `gap[s]` is how far a token at rank s is from the edge by the mass before it. A token may also move to rank s
    first, at the price of the logits between, so r inside leaves for `min over s >= r of max(ranked[r] - ranked[s],
    gap[s])`, and the like for entering. Both terms are monotone in s; they cross where `ranked[s] + gap[s]` falls
    to `ranked[r]`.
    """
    weights = np.exp((ranked[:kept] - ranked[0]) / params.temperature)
    shares = np.cumsum(weights) / weights.sum()
    before = np.concatenate([[0.0], shares[:-1], np.full(ranked.size - kept, shares[max(kept - 2, 0)])])
    with np.errstate(divide="ignore"):
        odds = np.log(before) - np.log(np.maximum(1.0 - before, 0.0))
    gap = params.temperature * (np.log(params.top_p / (1.0 - params.top_p)) - odds)
    crossing = np.searchsorted(-(ranked + gap), -ranked)
    behind = np.append(ranked, -np.inf)[crossing]
    leaving = np.minimum(gap[np.maximum(crossing - 1, 0)], ranked - behind)
    entering = np.maximum(np.append(gap, -np.inf)[crossing], ranked - ranked[np.maximum(crossing - 1, 0)])
    return np.asarray(np.where(gap > 0.0, leaving, entering))
