"""Training-time test: the head run over training text exactly as it will draft, several steps on its own hidden states.

A start at row i drafts as the engine does. Its first step is row i itself, made from true features. Step s is row
i + s: hidden is the head's own output of step s - 1, embedding and position are those of row i + s, and it may look at

    keys of true rows 0..i      |   keys of its own steps 1..s
    (of every row, step 0)          (its diagonal: one key per step and start)

so all starts of all conversations take a step together: a triangle of true keys, and s products along diagonals.
Knows the head and packed batches; does not know what is learnt from the outputs.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from calibration.train_draft.batches import Batch
from echo_sched.engine.draft.eagle3.head import Eagle3Head


def unroll(
    head: Eagle3Head, embed: Callable[[Tensor], Tensor], aux: Tensor, batch: Batch, num_steps: int
) -> list[Tensor]:
    """The head's output of every step at every start: `num_steps` tensors [M, hidden].

    aux: [N, features], the target's hidden states of all rows; embed: ids [N] -> [N, hidden]. Where a start has no
    tokens left for a step, the output is meaningless.
    """
    attention = UnrolledAttention(batch)
    outputs: list[Tensor] = []
    hidden, row, position = (
        head.fuse(aux).to(aux.dtype),
        torch.arange(len(batch.ids), device=batch.ids.device),
        batch.position,
    )
    for _ in range(num_steps):
        tokens = batch.ids[(row + 1).clamp(max=len(batch.ids) - 1)]
        output = head(embed(tokens)[None], hidden[None], position[None], attention)[0]
        if not outputs:  # from all rows to the starts
            output, row, position = output[batch.start], batch.start, batch.position[batch.start]
        outputs.append(output)
        hidden, row, position = output, row + 1, position + 1
    return outputs


class UnrolledAttention:
    """The head's attention, one call per step: all rows first, then the starts, which remember their own keys."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._true: tuple[Tensor, Tensor] | None = None  # keys, values [B, Hkv, T, d]
        self._own: list[tuple[Tensor, Tensor]] = []  # the same of each later step: [B, Hkv, S, d]

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[1, H, rows, d], [1, Hkv, rows, d] -> [1, rows, H, d]"""
        first = self._true is None
        area = self._batch.rows if first else self._batch.starts
        query, key, value = (area.spread(x[0].transpose(0, 1)).transpose(1, 2) for x in (query, key, value))
        position = torch.arange(area.width, device=query.device)[None]
        if self._true is None:
            self._true = key, value
        else:
            self._own.append((key, value))
            position = area.spread(self._batch.position[self._batch.start])
        mixed = attend(query, position, *self._true, self._own)
        return area.gather(mixed.transpose(1, 2))[None]


def attend(query: Tensor, position: Tensor, key: Tensor, value: Tensor, own: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Attention of rows to true keys up to their `position` and to their own keys.

    query [B, H, R, d]; position [B or 1, R]; key, value [B, Hkv, T, d]; own: pairs [B, Hkv, R, d] -> [B, H, R, d].
    """
    height, heads, width, size = query.shape
    kv_heads, num_true = key.shape[1], key.shape[2]
    folded = query.reshape(height, kv_heads, heads // kv_heads, width, size) * size**-0.5
    scores = torch.matmul(folded, key[:, :, None].transpose(-1, -2))  # [B, Hkv, folds, R, T]
    hidden = torch.arange(num_true, device=key.device) > position[..., None]  # [B, R, T]
    scores = scores.masked_fill(hidden[:, None, None], float("-inf"))
    diagonals = [(folded * own_key[:, :, None]).sum(-1, keepdim=True) for own_key, _ in own]
    weights = torch.cat([scores, *diagonals], dim=-1).softmax(-1)
    mixed = torch.matmul(weights[..., :num_true], value[:, :, None])
    for step, (_, own_value) in enumerate(own):
        mixed = mixed + weights[..., num_true + step, None] * own_value[:, :, None]
    return mixed.reshape(height, heads, width, size)
