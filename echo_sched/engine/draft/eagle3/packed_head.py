"""Runs the head over packed rows whose keys and values live in a KV cache: pairs that are committed, and tree nodes.

Knows no requests and no trees beyond their packed rows.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding

from echo_sched.engine.attention import AttentionPlan, packed_attention
from echo_sched.engine.draft.eagle3.head import Attention, Eagle3Head
from echo_sched.engine.kernels import whole_rows
from echo_sched.engine.kv import KVCache
from echo_sched.tree import Segment, pack


class Pairs(NamedTuple):
    """The next pairs of one slot."""

    slot: int
    tokens: Sequence[int]  # of each pair


class PackedHead:
    """A head and its cache. `embeddings` [vocab, hidden] are those that its tokens are read with."""

    def __init__(self, head: Eagle3Head, embeddings: Tensor, kv: KVCache) -> None:
        self._head = head
        self._embeddings = embeddings
        self._kv = kv
        self._self_attn = head.midlayer.self_attn

    def feed(self, fed: Sequence[Pairs], features: Tensor) -> Tensor:
        """Commit the KV of these pairs, whose target features are [N, feature_size], slot by slot.

        Returns the output [B, hidden] of every slot's last pair. Of the others nobody reads it, so that theirs is not
        computed.
        """
        kv, device = self._kv, features.device
        counts = [len(pairs.tokens) for pairs in fed]
        firsts = [kv.length(pairs.slot) for pairs in fed]
        token = [token for pairs in fed for token in pairs.tokens]
        slot = [pairs.slot for pairs, count in zip(fed, counts, strict=True) for _ in range(count)]
        index = [first + n for first, count in zip(firsts, counts, strict=True) for n in range(count)]
        at = torch.tensor([token, slot, index], device=device)
        last = torch.tensor(counts, device=device).cumsum(0) - 1
        segments = [
            Segment(pairs.slot, first + count - 1, pairs.tokens[-1:], [-1], 0)
            for pairs, first, count in zip(fed, firsts, counts, strict=True)
        ]
        attend = self._attention(AttentionPlan(pack(segments), kv, exact=False, device=device))

        def keep_and_attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            rows = [states[0, :, : len(token)].transpose(0, 1) for states in (key, value)]
            kv.append(self._self_attn.layer_idx, at[1], at[2], *rows)
            return attend(query, key[:, :, last], value[:, :, last])

        hidden = self._head.fuse(whole_rows(features))
        outputs = self._run(at[0], at[2], hidden, keep_and_attend, wanted=whole_rows(last))
        kv.commit([(pairs.slot, range(count)) for pairs, count in zip(fed, counts, strict=True)])
        return outputs[: len(fed)]

    def extend_trees(self, segments: Sequence[Segment], hidden: Tensor) -> Tensor:
        """Outputs [N, hidden] of tree nodes, given their parents' [N, hidden]. Their KV is written, not committed."""
        packed, device = pack(segments), hidden.device
        attend = self._attention(AttentionPlan(packed, self._kv, exact=False, device=device))
        token, position = (torch.from_numpy(rows).to(device) for rows in (packed.token, packed.position))
        return self._run(token, position, whole_rows(hidden), attend)[: len(hidden)]

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of draft tokens: [N, hidden] -> [N, draft_vocab]."""
        return self._head.logits(whole_rows(hidden))[: len(hidden)]

    def _attention(self, plan: AttentionPlan) -> Attention:
        return lambda query, key, value: packed_attention(self._self_attn, query, key, value, None, echo_plan=plan)[0]

    def _run(
        self, token: Tensor, position: Tensor, hidden: Tensor, attention: Attention, wanted: Tensor | None = None
    ) -> Tensor:
        """hidden [N, hidden] is filled up already; token, position: [at most N]."""
        embedded = embedding(whole_rows(token), self._embeddings)
        return self._head(embedded[None], hidden[None], whole_rows(position)[None], attention, wanted)[0]  # type: ignore[no-any-return]
