"""Small random EAGLE-3 heads in the public layouts, and what such a head computes, written out straight.

The second half shares no code with the engine: no cache, no packing, one row at a time, everything recomputed.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.tiny_models import VOCAB_SIZE

TARGET_SIZE = 48
NUM_TARGET_LAYERS = 3
DRAFT_VOCAB_SIZE = 60
Tensors = dict[str, Tensor]

LAYER = {
    "hidden_size": TARGET_SIZE,
    "intermediate_size": 80,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_hidden_layers": 1,
    "vocab_size": VOCAB_SIZE,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500.0,
    "hidden_act": "silu",
}
ORIGINAL: dict[str, Any] = LAYER | {
    "architectures": ["LlamaForCausalLMEagle3"],
    "draft_vocab_size": DRAFT_VOCAB_SIZE,
    "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
}
SPECULATORS: dict[str, Any] = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "draft_vocab_size": DRAFT_VOCAB_SIZE,
    "norm_before_residual": True,
    "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
    "transformer_layer_config": LAYER | {"model_type": "llama"},
}


def head_tensors(
    config: Mapping[str, Any], *, num_aux: int = 3, own_embeddings: bool = False, seed: int = 0
) -> Tensors:
    """Random weights under the original layout's names, with a random draft vocabulary."""
    layer = config.get("transformer_layer_config", config)
    hidden, inner, vocab = layer["hidden_size"], layer["intermediate_size"], layer["vocab_size"]
    queries, keys = (layer[n] * layer["head_dim"] for n in ("num_attention_heads", "num_key_value_heads"))
    draft_vocab = config.get("draft_vocab_size", vocab)
    shapes = {
        "midlayer.self_attn.q_proj.weight": (queries, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": (keys, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": (keys, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, queries),
        "midlayer.mlp.gate_proj.weight": (inner, hidden),
        "midlayer.mlp.up_proj.weight": (inner, hidden),
        "midlayer.mlp.down_proj.weight": (hidden, inner),
        "midlayer.input_layernorm.weight": (hidden,),
        "midlayer.hidden_norm.weight": (hidden,),
        "midlayer.post_attention_layernorm.weight": (hidden,),
        "norm.weight": (hidden,),
        "lm_head.weight": (draft_vocab, hidden),
    }
    if num_aux:
        shapes["fc.weight"] = (hidden, num_aux * TARGET_SIZE)
    if config.get("norm_before_fc"):
        shapes["input_norm.weight"] = (num_aux * TARGET_SIZE,)
    if own_embeddings:
        shapes["embed_tokens.weight"] = (vocab, hidden)
    if layer.get("attention_bias"):
        shapes |= {
            f"midlayer.self_attn.{n}_proj.bias": (s,)
            for n, s in zip("qkvo", (queries, keys, keys, hidden), strict=True)
        }
    numbers = torch.Generator().manual_seed(seed)
    tensors = {
        name: torch.randn(shape, generator=numbers, dtype=torch.float64) * 0.3 + float("norm" in name)
        for name, shape in sorted(shapes.items())
    }
    ids = torch.randperm(vocab, generator=numbers)[:draft_vocab].sort().values
    tensors["d2t"] = ids - torch.arange(draft_vocab)
    tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, ids, True)
    return tensors


def write_head(folder: Path, config: Mapping[str, Any], tensors: Tensors, *, pickled: bool = False) -> Path:
    """The files of a head in its config's layout."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if "transformer_layer_config" in config:
        tensors = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
    if pickled:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")
    return folder


class StraightHead:
    """EAGLE-3 by its definition, in float64, one row at a time."""

    def __init__(self, config: Mapping[str, Any], tensors: Tensors, target_embeddings: Tensor) -> None:
        self.config = config
        self.layer = config.get("transformer_layer_config", config)
        self.weights = tensors
        self.embeddings = tensors.get("embed_tokens.weight", target_embeddings).double()
        self.target_ids = (torch.arange(len(tensors["d2t"])) + tensors["d2t"]).tolist()
        self._pairs: object = None
        self._rows: list[tuple[Tensor, Tensor]] = []  # key and value of every row so far
        self._output = torch.zeros(0)

    def logps(self, features: Tensor, tokens: Sequence[int], path: Sequence[int]) -> Tensor:
        """[draft_vocab] log-probabilities of what follows `tokens` ++ `path`.

        features [len(tokens) - 1, F]: the target's, of all tokens but the last. Further hiddens are the layer's own.
        """
        if self._pairs != (tokens, features.shape):  # siblings share what comes before them
            self._rows = []
            for position, (hidden, token) in enumerate(zip(self.fuse(features), tokens[1:], strict=True)):
                self._output = self.row(hidden, self.embeddings[token], position, self._rows)
            self._pairs = (tokens, features.shape)
        rows, output = list(self._rows), self._output
        for token in path:
            output = self.row(output, self.embeddings[token], len(rows), rows)
        logits = self.weights["lm_head.weight"] @ self.rms(output, "norm.weight")
        return torch.log_softmax(logits, -1)

    def fuse(self, features: Tensor) -> Tensor:
        features = features.double()
        if self.config.get("norm_before_fc"):
            features = torch.stack([self.rms(row, "input_norm.weight") for row in features])
        return features @ self.weights["fc.weight"].T if "fc.weight" in self.weights else features

    def row(self, hidden: Tensor, embedding: Tensor, position: int, rows: list[tuple[Tensor, Tensor]]) -> Tensor:
        """The layer's output for one row that sees `rows`, to which it adds its own key and value."""
        normed = self.rms(hidden, "midlayer.hidden_norm.weight")
        residual = normed if self.config.get("norm_before_residual") else hidden
        wide = torch.cat([self.rms(embedding, "midlayer.input_layernorm.weight"), normed])
        query, key, value = (self.project(name, wide) for name in "qkv")
        width = self.layer["head_dim"]
        heads, kv_heads = len(query) // width, len(key) // width
        query, key = (self.rotate(x.view(-1, width), position) for x in (query, key))
        rows.append((key, value.view(kv_heads, width)))
        mixed = []
        for head in range(heads):
            shared = head // (heads // kv_heads)
            keys = torch.stack([key[shared] for key, _ in rows])
            values = torch.stack([value[shared] for _, value in rows])
            mixed.append(torch.softmax(keys @ query[head] / math.sqrt(width), 0) @ values)
        residual = residual + self.project("o", torch.cat(mixed))
        inner = self.rms(residual, "midlayer.post_attention_layernorm.weight")
        gate, up, down = (self.weights[f"midlayer.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        gated = gate @ inner
        return residual + down @ (gated * torch.sigmoid(gated) * (up @ inner))

    def project(self, name: str, x: Tensor) -> Tensor:
        out = self.weights[f"midlayer.self_attn.{name}_proj.weight"] @ x
        bias = self.weights.get(f"midlayer.self_attn.{name}_proj.bias")
        return out if bias is None else out + bias

    def rotate(self, x: Tensor, position: int) -> Tensor:
        """Each pair (i, i + half) turned by position * theta ** (-2 i / width)."""
        half = x.shape[-1] // 2
        angles = [position * self.layer["rope_theta"] ** (-2 * i / x.shape[-1]) for i in range(half)]
        out = x.clone()
        for i, angle in enumerate(angles):
            out[:, i] = x[:, i] * math.cos(angle) - x[:, i + half] * math.sin(angle)
            out[:, i + half] = x[:, i + half] * math.cos(angle) + x[:, i] * math.sin(angle)
        return out

    def rms(self, x: Tensor, name: str) -> Tensor:
        return x / torch.sqrt((x * x).mean() + self.layer["rms_norm_eps"]) * self.weights[name]
