"""The target: one model, its tokenizer and its KV cache, and the one forward pass of a step.

Opening a target checks settings before weights are read, and the weights before anything is served. Knows nothing of
requests, drafts or policies: it is handed packed rows and returns logits.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from echo_sched.engine import models
from echo_sched.engine.attention import ATTENTION_NAME, AttentionPlan
from echo_sched.engine.kernels import Numerics, install_kernels, packed_bytes
from echo_sched.engine.kv import GIB, KVCache, fit_slots, slot_len
from echo_sched.engine.memory import free_bytes
from echo_sched.engine.models import ModelFacts
from echo_sched.tree import SuperTree

logger = logging.getLogger(__name__)

# Packed copies of the weights may take at most this share of what memory is left beside weights and KV.
PACKED_SHARE = 0.5


class Target:
    """A loaded model and its cache. `forward` is the only way rows reach the model."""

    def __init__(
        self,
        model: PreTrainedModel,
        facts: ModelFacts,
        kv: KVCache,
        numerics: Numerics,
        *,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self.model = model
        self.facts = facts
        self.kv = kv
        self.numerics = numerics
        self.device = next(model.parameters()).device
        self._tokenizer = tokenizer
        extra = packed_bytes(model)
        fits = extra < PACKED_SHARE * free_bytes(self.device)
        self.kernels = install_kernels(model, numerics, allow_packing=fits)
        if not fits:
            logger.warning("no room for %.1f GiB of packed weights: linear layers run on torch's own", extra / GIB)

    @property
    def tokenizer(self) -> Tokenizer:
        assert self._tokenizer is not None, "this target was opened without a tokenizer"
        return self._tokenizer

    @torch.inference_mode()
    def forward(self, tree: SuperTree) -> Tensor:
        """One pass over all packed rows; their KV is written behind each slot's committed part.

        Returns logits [R, vocab] of `tree.logit_row`. Nothing is committed.
        """
        wanted = tree.logit_row if len(tree.logit_row) else tree.start[:1]  # a head without rows is asked of no kernel
        plan = AttentionPlan(tree, self.kv, exact=self.numerics == "exact", device=self.device)
        output = self.model(
            input_ids=torch.from_numpy(tree.token)[None].to(self.device),
            position_ids=torch.from_numpy(tree.position)[None].to(self.device),
            use_cache=False,
            logits_to_keep=torch.from_numpy(wanted).to(self.device),
            echo_plan=plan,
        )
        logits: Tensor = output.logits[0]
        return logits[: len(tree.logit_row)]

    @contextmanager
    def plain_attention(self) -> Iterator[PreTrainedModel]:
        """The model with transformers' own attention, for checks against it."""
        self.model.set_attn_implementation("sdpa")
        try:
            yield self.model
        finally:
            self.model.set_attn_implementation(ATTENTION_NAME)


def open_target(
    path: str,
    *,
    dtype: str,
    numerics: Numerics,
    device: torch.device,
    num_slots: int,
    max_model_len: int | None,
    tail_len: int,
    kv_limit_gib: float | None,
) -> Target:
    """Load a target for `num_slots` requests of `max_model_len` tokens, with `tail_len` places for draft nodes.

    `max_model_len` None: as long as the model can, up to a default.

    Raises ModelError when the model cannot be served exactly, ConfigError when the settings do not fit.
    """
    config = models.read_config(path)
    models.check_config(config)
    longest = models.choose_max_len(config, max_model_len)
    torch_dtype = models.choose_dtype(dtype, config)
    shape, max_len = models.kv_shape(config), slot_len(longest, tail_len)
    num_bytes = fit_slots(
        shape, torch_dtype, num_slots=num_slots, max_len=max_len, free=free_bytes(device), limit_gib=kv_limit_gib
    )
    logger.info("KV cache: %d slots x %d tokens = %.2f GiB in %s", num_slots, max_len, num_bytes / GIB, torch_dtype)
    tokenizer = models.load_tokenizer(path)
    model = models.load_weights(path, torch_dtype, device)
    facts = models.model_facts(path, model, torch_dtype, longest)
    kv = KVCache(shape, num_slots=num_slots, max_len=max_len, dtype=torch_dtype, device=device)
    return Target(model, facts, kv, numerics, tokenizer=tokenizer)
