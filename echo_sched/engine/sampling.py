"""Draws each row's next token: greedy, or the keyed race on the final distribution (temperature, top-k, top-p, min-p).

Row by row the result is a pure function of (logits, params, position); what else is in the batch never matters.
Only what decides is computed: the leading HEAD_SIZE candidates always, the rest of the vocabulary in float64 only
when cheap bounds on its total weight leave the outcome open. Weights are `exp((logit - max) / temperature)`,
float64, on the host.

Knows nothing of trees, requests or stops.
"""

from collections.abc import Sequence

import numpy as np
import torch

from echo_sched.engine.race import HEAD_SIZE, HEAD_STREAM, TAIL_ID, TAIL_STREAM, arrivals, first_arrival
from echo_sched.tree import FloatArray, IntArray
from echo_sched.types import SamplingParams

WIDE_SIZES = (1024, 8192)  # candidates looked at when a nucleus does not end in the head; after that, all of them
ROUGH_ERROR = 1e-4  # far above the relative error of a float32 sum of 10**6 exponentials


def sample(logits: torch.Tensor, params: Sequence[SamplingParams], positions: Sequence[int]) -> list[int]:
    """The next token of every row of logits [R, V]; `positions[r]` is its index in prompt + output."""
    assert logits.ndim == 2 and len(logits) == len(params) == len(positions), "one row per draw"
    tokens = np.zeros(len(params), np.int64)
    greedy = [row for row, param in enumerate(params) if param.greedy]
    sampled = [row for row, param in enumerate(params) if not param.greedy]
    if greedy:
        # numpy documents the first maximum, hence the lowest id; it is also several times faster than torch here
        values = _host(_select(logits, greedy))
        tokens[greedy] = values.argmax(axis=1)
        assert np.isfinite(values[range(len(greedy)), tokens[greedy]]).all(), "the model's logits are not finite"
    if sampled:
        tokens[sampled] = _race_rows(
            _select(logits, sampled), [params[row] for row in sampled], [positions[row] for row in sampled]
        )
    return [int(token) for token in tokens]


def leading(logits: torch.Tensor, count: int) -> tuple[IntArray, FloatArray]:
    """Ids and logits [R, min(count, V)] of each row's highest logits, descending, ties (but at -inf) by lowest id."""
    vocab_size = logits.shape[1]
    if count >= vocab_size:
        values = _host(logits).astype(np.float64)
        ids = np.argsort(-values, axis=1, kind="stable")
        return ids, np.take_along_axis(values, ids, axis=1)
    top = logits.topk(count + 1)
    values = _host(top.values).astype(np.float64)
    ids = top.indices.cpu().numpy()
    # topk picks arbitrarily among equals: where the last one in equals the first one out, collect all equals and choose
    # (but for tokens that are ruled out: they have no place, and few allowed ones leave many of them)
    tied = np.flatnonzero((values[:, count - 1] == values[:, count]) & np.isfinite(values[:, count]))
    values, ids = values[:, :count], ids[:, :count]
    for row in tied:
        whole = _host(logits[row])
        candidates = np.flatnonzero(whole >= values[row, -1])
        order = np.argsort(-whole[candidates].astype(np.float64), kind="stable")[:count]
        ids[row], values[row] = candidates[order], whole[candidates[order]]
    order = np.lexsort((ids, -values), axis=-1)
    return np.take_along_axis(ids, order, axis=1), np.take_along_axis(values, order, axis=1)


def _race_rows(logits: torch.Tensor, params: Sequence[SamplingParams], positions: Sequence[int]) -> IntArray:
    """Race every row of logits [S, V]; nobody is greedy."""
    vocab_size = logits.shape[1]
    ids, values = leading(logits, HEAD_SIZE)
    assert np.isfinite(values[:, 0]).all(), "the model's logits are not finite"
    temperatures = np.array([param.temperature for param in params])
    weights = np.exp((values - values[:, :1]) / temperatures[:, None])  # [S, H]
    highest = _highest_totals(logits, values[:, 0], temperatures, [_needs_total(param, vocab_size) for param in params])
    tails: dict[int, tuple[IntArray, FloatArray]] = {}  # survivors beyond the head, where they are known
    tail_weights = np.zeros(len(params))
    wide: list[int] = []  # rows whose support may exceed the head
    for row, param in enumerate(params):
        if not _filtered(param):
            tail_weights[row] = max(highest[row] - weights[row].sum(), 0.0)  # from above
            continue
        survivors = _num_survivors(weights[row], vocab_size, param, highest[row] * (1 - ROUGH_ERROR), highest[row])
        if survivors is None:
            wide.append(row)
        else:
            weights[row, survivors:] = 0.0
    if wide:
        found = _filter_wide(_select(logits, wide), [params[row] for row in wide])
        for row, (tail_ids, tail, survivors) in zip(wide, found, strict=True):
            tails[row], tail_weights[row] = (tail_ids, tail), tail.sum()
            weights[row, survivors:] = 0.0

    seeds = np.array([param.seed for param in params], np.uint64)
    times = arrivals(weights, seeds[:, None], np.array(positions)[:, None], ids, HEAD_STREAM)
    tail_times = arrivals(tail_weights, seeds, positions, TAIL_ID, HEAD_STREAM)
    winners, best_times = first_arrival(times, ids), times.min(axis=1)
    for row in np.flatnonzero(tail_times < best_times).tolist():
        key = (params[row].seed, positions[row])
        if row not in tails:  # the bound let the tail win: now exactly
            tails[row] = _outside(logits[row], ids[row], values[row, 0], params[row].temperature)
            exact = arrivals(tails[row][1].sum(keepdims=True), *key, TAIL_ID, HEAD_STREAM)
            if exact[0] >= best_times[row]:
                continue
        tail_ids, tail = tails[row]
        winners[row] = first_arrival(arrivals(tail, *key, tail_ids, TAIL_STREAM), tail_ids)
    return winners


def _filtered(param: SamplingParams) -> bool:
    return param.top_k != -1 or param.top_p < 1.0 or param.min_p > 0.0


def _num_kept(param: SamplingParams, vocab_size: int) -> int:
    """What top-k leaves."""
    return vocab_size if param.top_k == -1 else min(param.top_k, vocab_size)


def _needs_total(param: SamplingParams, vocab_size: int) -> bool:
    """Whether the whole vocabulary's weight matters: nothing is filtered, or a nucleus is cut from all of it."""
    return not _filtered(param) or (param.top_p < 1.0 and _num_kept(param, vocab_size) == vocab_size)


def _highest_totals(
    logits: torch.Tensor, maxima: FloatArray, temperatures: FloatArray, needed: Sequence[bool]
) -> FloatArray:
    """Upper bounds [S] on the rows' total weights, within ROUGH_ERROR of them; 0 where not needed."""
    totals = np.zeros(len(needed))
    rows = np.flatnonzero(needed)
    if rows.size:
        chosen = _select(logits, rows)
        chosen = chosen if chosen.dtype == torch.float64 else chosen.float()
        shift = torch.as_tensor(maxima[rows, None]).to(chosen)
        scale = torch.as_tensor(temperatures[rows, None]).to(chosen)
        rough = torch.exp((chosen - shift) / scale).sum(dim=1)
        totals[rows] = rough.double().cpu().numpy() * (1 + ROUGH_ERROR / 2)
    return totals


def _num_survivors(
    weights: FloatArray, vocab_size: int, param: SamplingParams, lowest: float, highest: float
) -> int | None:
    """How many leading candidates survive top-k, top-p and min-p, or None where these weights cannot tell.

    weights [n] are the n leading candidates', descending, the first one 1; the total of all lies in [lowest, highest].
    The nucleus is the shortest prefix whose share of what top-k left reaches top_p, as in transformers.
    """
    size = len(weights)
    kept = _num_kept(param, vocab_size)
    fewest, most = kept, kept
    if param.top_p < 1.0:
        shares = np.cumsum(weights)
        if kept <= size:
            lowest = highest = shares[kept - 1]
        elif kept < vocab_size:
            return None
        ends = np.searchsorted(shares, [param.top_p * lowest, param.top_p * highest]) + 1
        fewest, most = (min(kept, int(end) if end <= size else vocab_size) for end in ends)
    if param.min_p > 0.0:
        strong = int(np.count_nonzero(weights >= param.min_p))
        strong = strong if strong < size else vocab_size
        fewest, most = min(fewest, strong), min(most, strong)
    return fewest if fewest == most <= size else None


def _filter_wide(logits: torch.Tensor, params: Sequence[SamplingParams]) -> list[tuple[IntArray, FloatArray, int]]:
    """Filter rows [W, V] whose support may exceed the head: ids and weights beyond the head, and the whole count."""
    vocab_size = logits.shape[1]
    temperatures = np.array([param.temperature for param in params])[:, None]
    rows = _host(logits).astype(np.float64)
    totals = [float(row.sum()) for row in np.exp((rows - rows.max(axis=1, keepdims=True)) / temperatures)]
    found: dict[int, tuple[IntArray, FloatArray, int]] = {}
    for size in (*WIDE_SIZES, vocab_size):
        open_rows = [row for row in range(len(params)) if row not in found]
        if not open_rows:
            break
        ids, values = leading(_select(logits, open_rows), size)
        weights = np.exp((values - values[:, :1]) / temperatures[open_rows])
        for place, row in enumerate(open_rows):
            survivors = _num_survivors(weights[place], vocab_size, params[row], totals[row], totals[row])
            if survivors is not None:
                beyond = slice(HEAD_SIZE, survivors)
                found[row] = ids[place, beyond], weights[place, beyond], survivors
    return [found[row] for row in range(len(params))]


def _outside(row: torch.Tensor, head: IntArray, maximum: float, temperature: float) -> tuple[IntArray, FloatArray]:
    """Ids and weights of everything outside the head of an unfiltered row [V]."""
    outside = np.ones(len(row), np.bool_)
    outside[head] = False
    ids = np.flatnonzero(outside)
    return ids, np.exp((_host(row)[ids].astype(np.float64) - maximum) / temperature)


def _select(logits: torch.Tensor, rows: Sequence[int] | IntArray) -> torch.Tensor:
    """These rows, without a copy where it is all of them."""
    return logits if len(rows) == len(logits) else logits[torch.as_tensor(rows, device=logits.device)]


def _host(logits: torch.Tensor) -> FloatArray:
    """The same numbers as a numpy array: float64 stays, everything else becomes float32, both exactly."""
    host = logits.detach().cpu()
    array: FloatArray = (host if host.dtype == torch.float64 else host.float()).numpy()
    return array
