"""Tiny random models of every supported family, loud enough that their text varies."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    OPTConfig,
    Phi3Config,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)

VOCAB_SIZE = 160  # more than the race's head
WORDS = [f"w{index}" for index in range(VOCAB_SIZE - 2)]  # the vocabulary of a saved model, but for <unk> and <end>
SLIDING_WINDOW = 16  # short, so that tests cross it
MAX_POSITIONS = 512
WEIGHT_STD = 0.35
BIAS_STD = 0.1  # loud biases write the same token everywhere
TIED_STD = 0.07  # of an embedding that is the head too: a loud one repeats the last token for ever

FULL, SLIDING = "full_attention", "sliding_attention"
ROPE = {"rope_theta": 1e4}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
GROUPED = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": MAX_POSITIONS,
}
WINDOWED = GROUPED | {"sliding_window": SLIDING_WINDOW}
SEPARATE = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": MAX_POSITIONS,
}
TIED = {"tie_word_embeddings": True}
CONFIGS: dict[str, tuple[type, dict[str, Any]]] = {
    "llama": (LlamaConfig, GROUPED),
    "llama, tied": (
        LlamaConfig,
        GROUPED
        | TIED
        | {
            "rope_parameters": ROPE | LLAMA3 | {"original_max_position_embeddings": 32},
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    "qwen2": (
        Qwen2Config,
        WINDOWED
        | {
            "use_sliding_window": True,
            "max_window_layers": 1,
            "rope_parameters": ROPE | {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64},
        },
    ),
    "qwen3": (
        Qwen3Config,
        GROUPED | TIED | {"head_dim": 16, "rope_parameters": ROPE | {"rope_type": "linear", "factor": 2.0}},
    ),
    "qwen3_moe": (
        Qwen3MoeConfig,
        GROUPED
        | {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
    "mistral": (MistralConfig, WINDOWED),
    "gemma2": (
        Gemma2Config,
        WINDOWED | TIED | {"attn_logit_softcapping": 4.0, "final_logit_softcapping": 2.0, "query_pre_attn_scalar": 3},
    ),
    "gemma3": (
        Gemma3TextConfig,
        WINDOWED
        | TIED
        | {
            "layer_types": [SLIDING, FULL, SLIDING],
            "final_logit_softcapping": 2.0,
            "query_pre_attn_scalar": 3,
            "rope_parameters": {FULL: {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e5}, SLIDING: ROPE},
        },
    ),
    "phi3": (
        Phi3Config,
        WINDOWED
        | {
            "original_max_position_embeddings": MAX_POSITIONS // 2,
            "rope_parameters": ROPE
            | {
                "rope_type": "longrope",
                "partial_rotary_factor": 0.5,
                "short_factor": [1.0, 1.5],
                "long_factor": [4.0, 8.0],
            },
        },
    ),
    "olmo2": (Olmo2Config, GROUPED),
    "granite": (
        GraniteConfig,
        GROUPED
        | TIED
        | {
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.2,
            "logits_scaling": 0.5,
        },
    ),
    "smollm3": (SmolLM3Config, WINDOWED | TIED | {"use_sliding_window": True, "no_rope_layers": [1, 0, 1]}),
    "gpt2": (
        GPT2Config,
        {
            "n_embd": 48,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": MAX_POSITIONS,
            "scale_attn_by_inverse_layer_idx": True,
        },
    ),
    "gpt_neox": (
        GPTNeoXConfig,
        SEPARATE | {"intermediate_size": 64, "rope_parameters": ROPE | {"partial_rotary_factor": 0.5}},
    ),
    "opt": (OPTConfig, SEPARATE | TIED | {"ffn_dim": 64}),
    "opt, projected": (
        OPTConfig,
        SEPARATE
        | {
            "ffn_dim": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 12,
            "word_embed_proj_dim": 96,
            "do_layer_norm_before": False,
        },
    ),
}
FAMILIES = tuple(CONFIGS)


def tiny_model(
    family: str,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    vocab_size: int = VOCAB_SIZE,
    **settings: Any,
) -> PreTrainedModel:
    """A random model in eval mode, with `settings` in place of the family's own.

    SDPA where the family has it, because eager attention rounds its softmax to float32.
    """
    make_config, own = CONFIGS[family]
    config = make_config(
        **{"tie_word_embeddings": False}
        | own
        | settings
        | {"vocab_size": vocab_size, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    )
    experts = "eager" if dtype == torch.float64 else None  # torch groups no float64 products
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, experts_implementation=experts)
    numbers = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            is_tied = config.tie_word_embeddings and weight is model.get_input_embeddings().weight
            std = TIED_STD if is_tied else BIAS_STD if name.endswith("bias") else WEIGHT_STD
            noise = torch.randn(weight.shape, generator=numbers, dtype=torch.float64) * std
            is_scale = "norm" in name or "ln_" in name
            weight.copy_(noise + 1.0 if is_scale and name.endswith("weight") else noise)
    return model.eval()


def save_tiny_model(folder: Path, family: str = "llama", dtype: torch.dtype = torch.float32, **saving: Any) -> None:
    """A tiny model and its word-level tokenizer, as `save_pretrained` leaves them."""
    vocabulary = {word: index for index, word in enumerate(["<unk>", "<end>", *WORDS])}
    words = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", eos_token="<end>").save_pretrained(folder)
    tiny_model(family, dtype).save_pretrained(folder, **saving)


def random_prompt(length: int, seed: int = 0, vocab_size: int = VOCAB_SIZE) -> tuple[int, ...]:
    numbers = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(vocab_size, (length,), generator=numbers).tolist())


def decode(ids: Sequence[int]) -> str:
    """A text for ids, without a tokenizer: one letter or a pair per token, so that strings span tokens."""
    letters = "abcdefghij"
    return "".join(letters[i % 10] + (letters[i // 10 % 10] if i >= 100 else "") for i in ids)
