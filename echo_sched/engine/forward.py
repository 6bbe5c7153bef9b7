"""The target: one model, its tokenizer and its KV cache, and the one forward pass of a step.

Knows nothing of requests, drafts or policies: it is handed packed rows and returns logits.
"""

import logging
from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from echo_sched.engine.attention import AttentionPlan
from echo_sched.engine.kernels import Numerics, install_kernels, invariant_functions, packed_bytes, whole_rows
from echo_sched.engine.kv import GIB, KVCache
from echo_sched.engine.memory import free_bytes
from echo_sched.engine.models import ModelFacts
from echo_sched.tree import IntArray, SuperTree

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
        fits = self.device.type != "cpu" or extra < PACKED_SHARE * free_bytes(self.device)
        self.kernels = install_kernels(model, numerics, allow_packing=fits)
        self._functions = invariant_functions(model) if numerics == "exact" else nullcontext()
        if not fits:
            logger.warning("no room for %.1f GiB of packed weights: linear layers run on torch's own", extra / GIB)

    @property
    def tokenizer(self) -> Tokenizer:
        assert self._tokenizer is not None, "this target was opened without a tokenizer"
        return self._tokenizer

    def forward(self, tree: SuperTree) -> Tensor:
        """One pass over all packed rows; their KV is written behind each slot's committed part.

        Returns logits [R, vocab] of `tree.logit_row`. Nothing is committed.
        """
        return self.forward_with_features(tree, ())[0]

    @torch.inference_mode()
    def forward_with_features(self, tree: SuperTree, layers: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """`forward`, and what the same pass computed in between: hidden states of all rows, side by side in the order
        of `layers` [N, len(layers) * hidden] (0: embeddings, i: output of layer i - 1); None if no layer is asked for.
        """
        wanted = tree.logit_row if len(tree.logit_row) else tree.start[:1]  # a head without rows is asked of no kernel
        plan = AttentionPlan(
            tree, self.kv, exact=self.numerics == "exact", device=self.device, windows=self.facts.windows
        )
        with self._functions:
            output = self.model(
                input_ids=self._whole(tree.token)[None],
                position_ids=self._whole(tree.position)[None],
                use_cache=False,
                logits_to_keep=self._whole(wanted),
                output_hidden_states=list(layers) or None,
                echo_plan=plan,
            )
        logits: Tensor = output.logits[0]
        states = [output.hidden_states[layer][0, : tree.num_rows] for layer in layers]
        return logits[: len(tree.logit_row)], torch.cat(states, dim=-1) if layers else None

    def _whole(self, rows: IntArray) -> Tensor:
        return whole_rows(torch.from_numpy(rows).to(self.device))
