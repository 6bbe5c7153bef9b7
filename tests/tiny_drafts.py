"""Tiny draft models: strangers to the tiny target, the target itself, and relatives that often agree with it."""

import torch

from echo_sched.engine.attention import ATTENTION_NAME
from echo_sched.engine.draft.lm.drafter import LMDrafter
from echo_sched.engine.forward import Target
from echo_sched.engine.kv import KVCache, slot_len
from echo_sched.engine.model_config import kv_shape
from echo_sched.engine.models import model_facts
from tests.loops import CPU, TAIL_LEN
from tests.tiny_models import VOCAB_SIZE, tiny_model

STRANGER, TARGET = 1, 0  # seeds
RELATED = 0.01  # noise in the weights that leaves about half of the target's greedy choices


def lm_drafter(
    family: str = "llama",
    *,
    seed: int = TARGET,
    noise: float = 0.0,
    vocab_size: int = VOCAB_SIZE,
    num_slots: int = 4,
    max_len: int = 200,
    tail_len: int = TAIL_LEN,
    kv_class: type[KVCache] = KVCache,
    coupled: bool = False,
    max_extend_rows: int = 512,
) -> LMDrafter:
    """A drafter whose model has `vocab_size` rows of tokens and takes `max_len` positions."""
    model = tiny_model(family, seed=seed, vocab_size=vocab_size)
    numbers = torch.Generator().manual_seed(seed + 100)
    relative = dict(tiny_model(family, seed=seed).named_parameters())
    for name, weight in sorted(model.named_parameters()):
        rows = min(len(weight), len(relative[name]))  # all but those of tokens that only one of them has
        weight.data[:rows] = relative[name].data[:rows]
        weight.data += noise * torch.randn(weight.shape, generator=numbers, dtype=torch.float64)
    model.set_attn_implementation(ATTENTION_NAME)
    kv = kv_class(
        kv_shape(model.config),
        num_slots=num_slots,
        max_len=slot_len(max_len, tail_len),
        dtype=torch.float64,
        device=CPU,
    )
    draft = Target(model, model_facts("", model, torch.float64, max_len), kv, "fast")
    return LMDrafter(draft, min(vocab_size, VOCAB_SIZE), coupled=coupled, max_extend_rows=max_extend_rows)
