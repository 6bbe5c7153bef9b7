"""Reads a checkpoint's weights and tokenizer, and says what was loaded.

What its config tells before that is model_config.py's; whether the loaded model serves exactly, probe.py's. Knows
nothing of requests or policies.
"""

import hashlib
import json
import logging
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from echo_sched.engine.attention import ATTENTION_NAME
from echo_sched.engine.kv import KVShape
from echo_sched.engine.model_config import first_line, kv_shape, windows
from echo_sched.errors import ModelError

logger = logging.getLogger(__name__)

_FINGERPRINT_VALUES = 16  # per weight


class ModelFacts(NamedTuple):
    """What the rest of the product needs to know about a target."""

    path: str
    vocab_size: int
    max_model_len: int  # tokens of one request, prompt included
    eos_ids: frozenset[int]
    windows: tuple[int | None, ...]  # [layers] attention window
    kv_shape: KVShape
    dtype: torch.dtype
    fingerprint: str


def load_weights(path: str, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """The model in evaluation mode, its attention routed through the packed engine. Raises ModelError."""
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=dtype,
            attn_implementation=ATTENTION_NAME,
            experts_implementation="eager" if dtype == torch.float64 else None,  # torch groups no float64 products
            trust_remote_code=False,
            output_loading_info=True,
        )
    except Exception as error:  # damaged weight files raise errors of their readers' own
        raise ModelError(f"cannot load the model at {path!r}: {first_line(error)}") from error
    model: PreTrainedModel = loaded[0]
    loading: dict[str, Any] = loaded[1]
    random = [str(key) for kind in ("missing_keys", "mismatched_keys") for key in sorted(loading[kind])]
    if random:
        raise ModelError(f"the model at {path!r} lacks {len(random)} weights, which would be random: {random[0]}, ...")
    torch.nn.Module.to(model, device)  # PreTrainedModel.to hides its signature from type checkers
    model.eval().requires_grad_(False)
    return model


def use_own_attention(model: PreTrainedModel) -> None:
    """Let the model attend as it would outside this engine; SDPA where the family has it.

    Eager attention rounds its softmax to float32, which float64 could not be held to.
    """
    model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")


def load_tokenizer(path: str) -> Tokenizer:
    try:
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except Exception as error:  # the same
        raise ModelError(f"cannot load a tokenizer at {path!r}: {first_line(error)}") from error
    return tokenizer


def model_facts(path: str, model: PreTrainedModel, dtype: torch.dtype, max_model_len: int) -> ModelFacts:
    config = model.config
    eos = getattr(model.generation_config, "eos_token_id", None)
    eos = config.eos_token_id if eos is None else eos
    ids = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
    if not ids:
        logger.warning("this model names no end-of-sequence token: requests end by length or stop strings only")
    vocab_size = _weight(model.get_output_embeddings()).shape[0]
    return ModelFacts(
        path=path,
        vocab_size=vocab_size,
        max_model_len=max_model_len,
        eos_ids=frozenset(token for token in ids if token < vocab_size),  # a token without a logit is never drawn
        windows=windows(config),
        kv_shape=kv_shape(config),
        dtype=dtype,
        fingerprint=_fingerprint(model),
    )


def _fingerprint(model: PreTrainedModel) -> str:
    """Identity of the weights, the same in every dtype: shape facts and a few values of each weight, in bfloat16."""
    config = model.config
    facts: dict[str, Any] = {
        "type": config.model_type,
        "kv": list(kv_shape(config)),
        "hidden": config.hidden_size,
        "vocab": config.vocab_size,
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name, weight in sorted(model.named_parameters()):
        values = weight.detach().flatten()[:: max(1, weight.numel() // _FINGERPRINT_VALUES)]
        digest.update(name.encode() + values.to(torch.bfloat16).float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def _weight(module: torch.nn.Module) -> torch.Tensor:
    weight = module.weight
    assert isinstance(weight, torch.Tensor)
    return weight
