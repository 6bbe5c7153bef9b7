"""How likely the model found tokens: the float32 log-softmax of its logits as they came, untouched by sampling fields.

Row by row a pure function of (logits, token, number of top tokens). Knows nothing of requests or trees.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from echo_sched.engine.sampling import leading

LOWEST = torch.finfo(torch.float32).min  # stands for -inf, which JSON cannot say


class RowLogprobs(NamedTuple):
    value: float
    top: tuple[tuple[int, float], ...]  # (token id, logprob), best first, ties by lowest id


def row_logprobs(logits: Tensor, token_ids: Sequence[int], num_top: Sequence[int]) -> list[RowLogprobs]:
    """Logits [R, V] -> logprobs of each row's token and of its `num_top` most likely ones; NaN if the row holds one."""
    values = logits.float().log_softmax(-1)
    own = values.gather(1, torch.tensor(token_ids, device=logits.device)[:, None])[:, 0].clamp(min=LOWEST).tolist()
    top: list[tuple[tuple[int, float], ...]] = [()] * len(own)
    rows = [row for row, count in enumerate(num_top) if count]
    if rows:
        asked = torch.tensor(rows, device=logits.device)
        ids, _ = leading(logits[asked], max(num_top))
        best = values[asked].gather(1, torch.from_numpy(ids).to(logits.device)).clamp(min=LOWEST).tolist()
        for row, row_ids, row_best in zip(rows, ids.tolist(), best, strict=True):
            top[row] = tuple(zip(row_ids, row_best, strict=True))[: num_top[row]]
    return [RowLogprobs(value, row_top) for value, row_top in zip(own, top, strict=True)]
