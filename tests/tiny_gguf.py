"""A GGUF file of a tiny random Llama with a byte-level tokenizer, for tests of the conversion."""

from pathlib import Path
from typing import Literal

import gguf
import numpy as np
from transformers.convert_slow_tokenizer import bytes_to_unicode

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
BOS_ID, EOS_ID = 1, 2
CHAT_TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"

HIDDEN, FEED_FORWARD, NUM_LAYERS, NUM_HEADS, NUM_KV_HEADS = 32, 64, 2, 4, 2
KV_WIDTH = HIDDEN // NUM_HEADS * NUM_KV_HEADS


def write_tiny_gguf(path: Path, stored: Literal["F32", "Q4_1"], leave_out: str | None = None) -> dict[str, np.ndarray]:
    """Write the file, perhaps without one tensor, and return its tensors as they were before they were stored."""
    tokens = [*SPECIAL_TOKENS, *bytes_to_unicode().values(), "he"]
    tensors = _tensors(len(tokens))
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_block_count(NUM_LAYERS)
    writer.add_head_count(NUM_HEADS)
    writer.add_head_count_kv(NUM_KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [3] * len(SPECIAL_TOKENS) + [1] * (len(tokens) - len(SPECIAL_TOKENS))
    )  # 3: control, 1: normal
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(BOS_ID)
    writer.add_eos_token_id(EOS_ID)
    writer.add_chat_template(CHAT_TEMPLATE)
    for name, tensor in tensors.items():
        if name == leave_out:
            continue
        if stored == "Q4_1" and tensor.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q4_1
            writer.add_tensor(name, gguf.quantize(tensor, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def _tensors(vocab_size: int) -> dict[str, np.ndarray]:
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocab_size, HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(NUM_LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (HIDDEN,),
            f"blk.{layer}.attn_q.weight": (HIDDEN, HIDDEN),
            f"blk.{layer}.attn_k.weight": (KV_WIDTH, HIDDEN),
            f"blk.{layer}.attn_v.weight": (KV_WIDTH, HIDDEN),
            f"blk.{layer}.attn_output.weight": (HIDDEN, HIDDEN),
            f"blk.{layer}.ffn_norm.weight": (HIDDEN,),
            f"blk.{layer}.ffn_gate.weight": (FEED_FORWARD, HIDDEN),
            f"blk.{layer}.ffn_up.weight": (FEED_FORWARD, HIDDEN),
            f"blk.{layer}.ffn_down.weight": (HIDDEN, FEED_FORWARD),
        }
    numbers = np.random.default_rng(0)
    return {name: numbers.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
