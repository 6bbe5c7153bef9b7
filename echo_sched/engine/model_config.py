"""Reads a checkpoint's config and decides from it alone whether the model can be served, and in what shape.

Support is never inferred from a model's name. A config must pass the load rule below, and the loaded model must pass
the probe (probe.py), which compares the packed engine with the model's own attention. Reads no weights.
"""

import logging
from typing import Any

import torch
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, PretrainedConfig

from echo_sched.engine.kv import KVShape
from echo_sched.errors import ConfigError, ModelError

logger = logging.getLogger(__name__)

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
_LAYER_TYPES = {"full_attention", "sliding_attention"}
_LENGTH_DEPENDENT_ROPE = {"dynamic", "longrope"}
_NEEDED = ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size", "max_position_embeddings")
DEFAULT_MAX_LEN = 2048


def read_config(path: str) -> PretrainedConfig:
    """The checkpoint's config. Raises ModelError with one line if there is none, or none that makes sense.

    Code that a checkpoint brings along is never run: a family that transformers knows runs on transformers' own code.
    """
    try:
        name, brings_code = _description(path)
        if brings_code and name not in CONFIG_MAPPING:
            raise ModelError(f"{name} needs the Python code in its folder (auto_map), and such code is never run here")
        config: PretrainedConfig = AutoConfig.from_pretrained(path, trust_remote_code=False)
    except Exception as error:  # validators of config classes raise whatever they like
        raise ModelError(f"cannot read a model config at {path!r}: {first_line(error)}") from error
    if brings_code:
        logger.warning("the Python code that comes with this model is not run; transformers' own %s is", name)
    return config


def _description(path: str) -> tuple[str, bool]:
    """The family's name, and whether the checkpoint brings Python code for it."""
    described, _ = PretrainedConfig.get_config_dict(path)
    return str(described.get("model_type")), "auto_map" in described


def check_config(config: PretrainedConfig) -> None:
    """The load rule, as far as a config and its family's class tell. Raises ModelError with the reason."""
    name = config.model_type
    if config.is_encoder_decoder:
        raise ModelError(f"{name} is an encoder-decoder model; only causal language models are served")
    if hasattr(config, "text_config") or hasattr(config, "vision_config"):
        raise ModelError(f"{name} is multimodal; only text-only causal language models are served")
    _check_class(name, MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None))
    layer_types = set(getattr(config, "layer_types", None) or ())
    if not layer_types <= _LAYER_TYPES:
        raise ModelError(f"{name} has layers of type {', '.join(sorted(layer_types - _LAYER_TYPES))}")
    if getattr(config, "num_kv_shared_layers", 0):
        raise ModelError(f"{name} shares KV between layers")
    if getattr(config, "use_bidirectional_attention", False):
        raise ModelError(f"{name} attends in both directions")
    missing = [key for key in _NEEDED if not isinstance(getattr(config, key, None), int) or getattr(config, key) < 1]
    if missing:
        raise ModelError(f"{name} cannot be served: its config has no usable {', '.join(missing)}")


def _check_class(name: str, family: Any) -> None:
    if family is None:
        raise ModelError(f"transformers has no causal language model for {name}")
    if getattr(family, "_is_stateful", False):
        raise ModelError(f"{name} is recurrent; its state cannot be rewound after a rejected draft")
    if not getattr(family, "_supports_attention_backend", False):
        raise ModelError(f"{name} does not route its attention through transformers' interface")


def choose_max_len(config: PretrainedConfig, asked: int | None) -> int:
    """The longest request to serve: as asked, else DEFAULT_MAX_LEN or what the model can. Raises ConfigError."""
    longest, reason = longest_request(config)
    if asked is not None and asked > longest:
        raise ConfigError(f"--max-model-len {asked} is beyond the {longest} {reason}")
    return min(DEFAULT_MAX_LEN, longest) if asked is None else asked


def longest_request(config: PretrainedConfig) -> tuple[int, str]:
    """The tokens that the model can take, and what they are.

    Some rotary scalings depend on the longest request of a batch, so a neighbour would change everybody's tokens; they
    do not below the length the model was trained at, and no longer request is served.
    """
    longest, reason = int(config.max_position_embeddings), "positions of this model"
    for rope in _rope_parameters(config):
        if rope.get("rope_type") in _LENGTH_DEPENDENT_ROPE:
            trained = int(rope.get("original_max_position_embeddings") or longest)
            longest = min(longest, trained)
            reason = f"positions that {config.model_type}'s {rope['rope_type']} rotary scaling leaves alone"
    return longest, reason


def _rope_parameters(config: PretrainedConfig) -> list[dict[str, Any]]:
    """One set for all layers, or one per layer type."""
    rope = getattr(config, "rope_parameters", None) or {}
    return [rope] if "rope_type" in rope else [part for part in rope.values() if isinstance(part, dict)]


def kv_shape(config: PretrainedConfig) -> KVShape:
    heads = int(config.num_attention_heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    return KVShape(int(config.num_hidden_layers), kv_heads, head_dim)


def windows(config: PretrainedConfig) -> tuple[int | None, ...]:
    """The window of each layer, as the config tells; without layer types all layers are alike."""
    window = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def choose_dtype(name: str, config: PretrainedConfig) -> torch.dtype:
    """The named dtype; "auto" is the checkpoint's own if the engine has it, else float32."""
    if name != "auto":
        return DTYPES[name]
    own = getattr(config, "dtype", None)
    return next((dtype for dtype in DTYPES.values() if dtype == own), torch.float32)


def first_line(error: BaseException) -> str:
    """What a third party's error says, for a message of one line."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
