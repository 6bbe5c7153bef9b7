"""The EAGLE-3 network: target features are fused, one decoder layer reads them beside token embeddings, and a head
scores a reduced vocabulary (arXiv 2503.01840).

A row is a pair (hidden at position p, embedding of the token at p + 1); its logits are about the token at p + 2. The
hidden is the fused target feature where the target has computed one, else the layer's own output one row earlier
("recycled", before the final norm). Rows take position p in the rotary embedding, as the public implementations do.

Attention is handed in, so that training, serving and tests share these weights and nothing else. Module names are
those of the original public layout. Knows no files, requests, caches or trees.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

# query [B, H, M, d], key and value [B, Hkv, N, d], positions already in them -> [B, M, H, d]
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Eagle3Config:
    """Shapes and variants of a head. `vocab_size` and `target_hidden_size` are the target's."""

    hidden_size: int
    target_hidden_size: int
    aux_layers: tuple[int, ...]  # indices into the target's hidden_states: 0 embeddings, i output of layer i - 1
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    max_positions: int = 2048  # only read by some kinds of rope_scaling
    rms_norm_eps: float = 1e-5
    norm_before_residual: bool = False  # the residual stream starts from the normed hidden
    norm_before_fc: bool = False  # one norm over the concatenated features
    attention_bias: bool = False
    hidden_act: str = "silu"
    own_embeddings: bool = False  # else the target's token embeddings are used
    fused: bool = True  # False: one feature of the draft's own width, and no fc

    @property
    def num_aux(self) -> int:
        return len(self.aux_layers)

    @property
    def feature_size(self) -> int:
        """Width of the concatenated target features of one position."""
        return self.num_aux * self.target_hidden_size


class Eagle3Head(nn.Module):
    """The draft network. Initialised as torch does; load_state_dict or training give it sense."""

    d2t: Tensor

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        assert config.fused or config.feature_size == config.hidden_size
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size) if config.own_embeddings else None
        self.input_norm = nn.RMSNorm(config.feature_size, eps=config.rms_norm_eps) if config.norm_before_fc else None
        self.fc = nn.Linear(config.feature_size, config.hidden_size, bias=False) if config.fused else None
        self.midlayer = DecoderLayer(config)
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        # Draft token j is target token j + d2t[j]: an offset, as in the public layouts.
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))

    @property
    def target_ids(self) -> Tensor:
        """[draft_vocab]: the target's id of every draft token."""
        return torch.arange(self.d2t.shape[0], device=self.d2t.device) + self.d2t

    def fuse(self, features: Tensor) -> Tensor:
        """Target features [..., num_aux * target_hidden], concatenated in the order of aux_layers -> [..., hidden]."""
        if self.input_norm is not None:
            features = self.input_norm(features)
        return features if self.fc is None else self.fc(features)

    def forward(
        self,
        embeddings: Tensor,
        hidden: Tensor,
        position_ids: Tensor,
        attention: Attention,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """One layer over rows. embeddings, hidden: [B, N, hidden]; position_ids: [B, N] -> [B, M, hidden].

        `wanted` [M]: the rows whose output is read; of the others keys and values are all that is computed. None: all.
        The result is what the next row recycles, and what `logits` reads.
        """
        return self.midlayer(embeddings, hidden, position_ids, attention, wanted)  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of draft tokens from the layer's output: [..., hidden] -> [..., draft_vocab]."""
        return self.lm_head(self.norm(hidden))  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """A Llama layer whose attention reads embedding and hidden side by side."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.norm_before_residual = config.norm_before_residual
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = SelfAttention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = GatedMLP(config)

    def forward(
        self, embeddings: Tensor, hidden: Tensor, position_ids: Tensor, attention: Attention, wanted: Tensor | None
    ) -> Tensor:
        normed = self.hidden_norm(hidden)
        rows = torch.cat([self.input_layernorm(embeddings), normed], dim=-1)
        residual = _chosen(normed if self.norm_before_residual else hidden, wanted)
        residual = residual + self.self_attn(rows, position_ids, attention, wanted)
        return residual + self.mlp(self.post_attention_layernorm(residual))  # type: ignore[no-any-return]


class SelfAttention(nn.Module):
    """Projections and rotary positions; the attention itself is the caller's."""

    layer_idx = 0  # the layer's place in a KV cache

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        width, bias = 2 * config.hidden_size, config.attention_bias
        self.q_proj = nn.Linear(width, config.num_heads * config.head_dim, bias=bias)
        self.k_proj = nn.Linear(width, config.num_kv_heads * config.head_dim, bias=bias)
        self.v_proj = nn.Linear(width, config.num_kv_heads * config.head_dim, bias=bias)
        self.o_proj = nn.Linear(config.num_heads * config.head_dim, config.hidden_size, bias=bias)
        # No buffer: a module's buffers follow its dtype, and angles need float32.
        self._frequencies, self._amplitude = _rotary(config)

    def forward(self, rows: Tensor, position_ids: Tensor, attention: Attention, wanted: Tensor | None) -> Tensor:
        reading, at = _chosen(rows, wanted), _chosen(position_ids, wanted)
        query, key, value = map(self._heads, (self.q_proj(reading), self.k_proj(rows), self.v_proj(rows)))
        query, key = _rotate(query, *self._turn(rows, at)), _rotate(key, *self._turn(rows, position_ids))
        return self.o_proj(attention(query, key, value).flatten(-2))  # type: ignore[no-any-return]

    def _heads(self, projected: Tensor) -> Tensor:
        """[B, N, heads * d] -> [B, heads, N, d]"""
        return projected.view(*projected.shape[:-1], -1, self.head_dim).transpose(1, 2)

    def _turn(self, rows: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin of each row's angles: [B, 1, N, d / 2]."""
        if self._frequencies.device != rows.device:
            self._frequencies = self._frequencies.to(rows.device)
        angles = position_ids[:, None, :, None].float() * self._frequencies
        return tuple((f(angles) * self._amplitude).to(rows.dtype) for f in (torch.cos, torch.sin))  # type: ignore[return-value]


class GatedMLP(nn.Module):
    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down_proj(self.activation(self.gate_proj(hidden)) * self.up_proj(hidden))  # type: ignore[no-any-return]


def _chosen(rows: Tensor, wanted: Tensor | None) -> Tensor:
    """rows [B, N, ...] -> [B, M, ...]"""
    return rows if wanted is None else rows[:, wanted]


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions, pairs split into halves. x: [B, H, N, d]; cos, sin: [B, 1, N, d / 2]."""
    low, high = x.chunk(2, dim=-1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


def _rotary(config: Eagle3Config) -> tuple[Tensor, float]:
    """Inverse frequencies [head_dim / 2] in float32, and the factor of cos and sin, by transformers' rules."""
    scaling = dict(config.rope_scaling or {"rope_type": "default"})
    with torch.device("cpu"):
        rotary = LlamaRotaryEmbedding(
            LlamaConfig(
                hidden_size=config.num_heads * config.head_dim,
                num_attention_heads=config.num_heads,
                head_dim=config.head_dim,
                max_position_embeddings=config.max_positions,
                rope_parameters={"rope_theta": config.rope_theta, **scaling},
            )
        )
    frequencies = rotary.inv_freq
    assert isinstance(frequencies, Tensor)
    return frequencies.float(), float(rotary.attention_scaling)
