"""config.json of an EAGLE-3 head, in both public layouts: read into one Eagle3Config and checked against the target;
written in the original layout.

original       a Llama's config with `draft_vocab_size`
speculators    the Llama's config nested as `transformer_layer_config`

Knows nothing of tensors beyond the width of the fusion.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers.activations import ACT2FN

from echo_sched.engine.draft.eagle3.aux_layers import find_aux_layers, named_aux_layers
from echo_sched.engine.draft.eagle3.head import Eagle3Config
from echo_sched.errors import ModelError

_UNSUPPORTED = ("fc_norm", "norm_output", "mlp_bias", "parallel_drafting")
_LENGTH_DEPENDENT_ROPE = {"dynamic", "longrope"}


class TargetShape(NamedTuple):
    """What a head must agree with."""

    num_layers: int
    hidden_size: int
    vocab_size: int


def read_head_config(folder: str | Path) -> dict[str, Any]:
    """The head's config.json, if it says that it is an EAGLE-3 head. Raises ModelError."""
    path = Path(folder) / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"cannot read the draft model's {path}: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"the draft model's {path} is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise ModelError(f"the draft model's {path} is not an object")
    kind = raw.get("speculators_model_type", "eagle3")
    if kind != "eagle3" or not ("transformer_layer_config" in raw or "draft_vocab_size" in raw or "fc" in raw):
        names = raw.get("architectures") or [kind]
        raise ModelError(
            f"{path}: {names[0]} is not an EAGLE-3 head (no draft_vocab_size, no transformer_layer_config); a whole "
            "model drafts with --drafter lm"
        )
    return raw


def head_config(
    path: Path,
    raw: Mapping[str, Any],
    target: TargetShape,
    aux_layers: tuple[int, ...] | None,
    *,
    fc_width: int | None,
    own_embeddings: bool,
) -> Eagle3Config:
    """Both layouts' settings as one, checked against the target. `fc_width`: features that the fusion reads, if any.

    Raises ModelError naming the mismatch.
    """
    layer: Mapping[str, Any] = raw.get("transformer_layer_config", raw)
    eagle: Mapping[str, Any] = raw.get("eagle_config") or {}
    _check(path, raw, target, fused=fc_width is not None, own_embeddings=own_embeddings)
    hidden_size, num_heads = _integer(path, layer, "hidden_size"), _integer(path, layer, "num_attention_heads")
    vocab_size = _integer(path, layer, "vocab_size")
    theta, scaling = _rope(path, layer)
    return Eagle3Config(
        hidden_size=hidden_size,
        target_hidden_size=target.hidden_size,
        aux_layers=_aux_layers(path, raw, target, fc_width or target.hidden_size, aux_layers),
        intermediate_size=_integer(path, layer, "intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=layer.get("num_key_value_heads") or num_heads,
        head_dim=layer.get("head_dim") or hidden_size // num_heads,
        vocab_size=vocab_size,
        draft_vocab_size=raw.get("draft_vocab_size") or vocab_size,
        rope_theta=theta,
        rope_scaling=scaling,
        max_positions=layer.get("max_position_embeddings", Eagle3Config.max_positions),
        rms_norm_eps=layer.get("rms_norm_eps", 1e-6),
        norm_before_residual=bool(raw.get("norm_before_residual", False)),
        norm_before_fc=bool(raw.get("norm_before_fc") or eagle.get("norm_before_fc")),
        attention_bias=bool(layer.get("attention_bias", False)),
        hidden_act=layer.get("hidden_act", "silu"),
        own_embeddings=own_embeddings,
        fused=fc_width is not None,
    )


def _check(path: Path, raw: Mapping[str, Any], target: TargetShape, *, fused: bool, own_embeddings: bool) -> None:
    """Whether it is a head that we can run, and for this target. Raises ModelError."""
    layer: Mapping[str, Any] = raw.get("transformer_layer_config", raw)
    for name in _UNSUPPORTED:
        if raw.get(name) or layer.get(name):
            raise ModelError(f"{path}: heads with {name} are not supported")
    if layer.get("num_hidden_layers", 1) != 1:
        raise ModelError(f"{path}: the head has {layer['num_hidden_layers']} layers; one is supported")
    needed = ("hidden_size", "num_attention_heads", "vocab_size")
    hidden_size, _, vocab_size = (_integer(path, layer, name) for name in needed)
    target_size = raw.get("target_hidden_size") or layer.get("target_hidden_size") or hidden_size
    _agree(path, "hidden size", target_size, target.hidden_size)
    _agree(path, "vocabulary", vocab_size, target.vocab_size)
    if hidden_size != target.hidden_size and not own_embeddings:
        raise ModelError(
            f"{path}: the head is {hidden_size} wide, the target {target.hidden_size}, and no embed_tokens are given"
        )
    if hidden_size != target.hidden_size and not fused:
        raise ModelError(
            f"{path}: the head is {hidden_size} wide, the target {target.hidden_size}, and no fc leads from one to the "
            "other"
        )
    activation = layer.get("hidden_act", "silu")
    if activation not in ACT2FN:
        raise ModelError(f"{path}: unknown hidden_act {activation!r}")


def _aux_layers(
    path: Path, raw: Mapping[str, Any], target: TargetShape, width: int, override: tuple[int, ...] | None
) -> tuple[int, ...]:
    """Which hidden states the head reads. Their number must fit the fusion's width."""
    num_aux, rest = divmod(width, target.hidden_size)
    if rest or not num_aux:
        raise ModelError(
            f"{path}: fc reads features of {width}, which is no multiple of the target's hidden size "
            f"{target.hidden_size}: the head was made for another target"
        )
    return find_aux_layers(path, raw, num_layers=target.num_layers, num_aux=num_aux, override=override)


def _rope(path: Path, layer: Mapping[str, Any]) -> tuple[float, dict[str, Any] | None]:
    scaling = dict(layer.get("rope_parameters") or layer.get("rope_scaling") or {})
    theta = float(scaling.pop("rope_theta", None) or layer.get("rope_theta") or 10000.0)
    kind = scaling.pop("type", None) or "default"
    kind = scaling.setdefault("rope_type", kind)
    if kind in _LENGTH_DEPENDENT_ROPE:
        raise ModelError(f"{path}: rotary scaling of type {kind} depends on the longest request and is not supported")
    return theta, None if kind == "default" else scaling


def _integer(path: Path, config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or value < 1:
        raise ModelError(f"{path}: config.json needs a positive {name}, got {value!r}")
    return value


def _agree(path: Path, what: str, of_head: int, of_target: int) -> None:
    if of_head != of_target:
        raise ModelError(f"{path}: the head was made for a target with {what} {of_head}; this one has {of_target}")


def public_config(config: Eagle3Config, num_target_layers: int, dtype: torch.dtype) -> dict[str, Any]:
    """The original layout."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": config.hidden_size,
        "target_hidden_size": config.target_hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "max_position_embeddings": config.max_positions,
        "rope_theta": config.rope_theta,
        "rope_scaling": config.rope_scaling,
        "rms_norm_eps": config.rms_norm_eps,
        "attention_bias": config.attention_bias,
        "hidden_act": config.hidden_act,
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.norm_before_fc,
        "tie_word_embeddings": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
        **named_aux_layers(config.aux_layers, num_target_layers),
    }
