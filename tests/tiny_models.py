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
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gpt2")
VOCAB_SIZE = 160  # more than the race's head
WORDS = [f"w{index}" for index in range(VOCAB_SIZE - 2)]  # the vocabulary of a saved model, but for <unk> and <end>
SLIDING_WINDOW = 16  # short, so that tests cross it
MAX_POSITIONS = 512
WEIGHT_STD = 0.35

GROUPED = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": MAX_POSITIONS,
}
CONFIGS: dict[str, tuple[type, dict[str, Any]]] = {
    "llama": (LlamaConfig, GROUPED),
    "qwen2": (Qwen2Config, GROUPED),
    "qwen3": (Qwen3Config, GROUPED | {"head_dim": 16}),
    "mistral": (MistralConfig, GROUPED | {"sliding_window": SLIDING_WINDOW}),
    "gpt2": (GPT2Config, {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": MAX_POSITIONS}),
}


def tiny_model(
    family: str, dtype: torch.dtype = torch.float64, seed: int = 0, vocab_size: int = VOCAB_SIZE
) -> PreTrainedModel:
    """A random model in eval mode. SDPA, because eager attention rounds its softmax to float32."""
    make_config, settings = CONFIGS[family]
    config = make_config(
        **settings,
        vocab_size=vocab_size,
        tie_word_embeddings=False,  # tied random embeddings repeat the last token for ever
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=dtype)
    numbers = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            noise = torch.randn(weight.shape, generator=numbers, dtype=torch.float64) * WEIGHT_STD
            is_scale = "norm" in name or "ln_" in name
            weight.copy_(noise + 1.0 if is_scale and name.endswith("weight") else noise)
    return model.eval()


def save_tiny_model(folder: Path) -> None:
    """A tiny float32 Llama and its word-level tokenizer, as `save_pretrained` leaves them."""
    vocabulary = {word: index for index, word in enumerate(["<unk>", "<end>", *WORDS])}
    words = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", eos_token="<end>").save_pretrained(folder)
    tiny_model("llama", torch.float32).save_pretrained(folder)


def random_prompt(length: int, seed: int = 0, vocab_size: int = VOCAB_SIZE) -> tuple[int, ...]:
    numbers = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(vocab_size, (length,), generator=numbers).tolist())


def decode(ids: Sequence[int]) -> str:
    """A text for ids, without a tokenizer: one letter or a pair per token, so that strings span tokens."""
    letters = "abcdefghij"
    return "".join(letters[i % 10] + (letters[i // 10 % 10] if i >= 100 else "") for i in ids)
