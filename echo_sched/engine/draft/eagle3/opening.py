"""Opens an EAGLE-3 drafter for a loaded target: weights in the target's precision, fast kernels, KV for every slot."""

import logging
from pathlib import Path

from torch import Tensor

from echo_sched.engine.draft.eagle3.checkpoint import load_head
from echo_sched.engine.draft.eagle3.drafter import Eagle3Drafter
from echo_sched.engine.draft.eagle3.layouts import TargetShape
from echo_sched.engine.forward import PACKED_SHARE, Target
from echo_sched.engine.kernels import install_kernels, packed_bytes
from echo_sched.engine.kv import GIB, KVCache, KVShape, fit_slots
from echo_sched.engine.memory import free_bytes

logger = logging.getLogger(__name__)


def open_eagle3(
    folder: str | Path, target: Target, *, aux_layers: tuple[int, ...] | None = None, coupled: bool = False
) -> Eagle3Drafter:
    """A drafter for as many requests, as long, as the target's cache holds.

    Raises ModelError when the head does not fit the target, ConfigError when its KV does not fit into memory.
    """
    config, dtype, device = target.model.config, target.facts.dtype, target.device
    shape = TargetShape(config.num_hidden_layers, config.hidden_size, target.facts.vocab_size)
    head = load_head(folder, shape, aux_layers=aux_layers, dtype=dtype, device=device)
    kv_shape = KVShape(1, head.config.num_kv_heads, head.config.head_dim)
    slots, max_len = target.kv.num_slots, target.kv.max_len
    num_bytes = fit_slots(kv_shape, dtype, num_slots=slots, max_len=max_len, free=free_bytes(device), limit_gib=None)
    kv = KVCache(kv_shape, num_slots=slots, max_len=max_len, dtype=dtype, device=device)
    install_kernels(head, "fast", allow_packing=packed_bytes(head) < PACKED_SHARE * free_bytes(device))
    logger.info(
        "draft head %s: hidden states %s of the target, %d draft tokens, KV %.2f GiB",
        folder,
        ",".join(map(str, head.config.aux_layers)),
        head.config.draft_vocab_size,
        num_bytes / GIB,
    )
    embeddings = target.model.get_input_embeddings().weight
    assert isinstance(embeddings, Tensor)
    return Eagle3Drafter(head, embeddings, kv, coupled=coupled)
