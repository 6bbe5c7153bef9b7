"""The target as a teacher: hidden states that the head reads, and distributions that it should predict.

The model runs over whole conversations with its own plain attention; nothing is decoded. Knows no head.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear
from transformers import PreTrainedModel

from calibration.train_draft.batches import Batch
from echo_sched.engine import model_config, models
from echo_sched.engine.kernels import install_kernels, packed_bytes
from echo_sched.engine.memory import free_bytes
from echo_sched.engine.models import ModelFacts
from echo_sched.errors import ModelError

PACKED_SHARE = 0.5  # packed copies of the weights may take at most this share of free memory
LOGIT_TOLERANCE = 0.05  # of the spread of logits: bfloat16 rounds one way or the other
CHECK_IDS = 8


class Features(NamedTuple):
    """Of one batch, in the target's precision."""

    aux: Tensor  # [N, num_aux * target_hidden]: hidden states of the auxiliary layers, side by side
    final: Tensor  # [M, target_hidden]: the last hidden state after each draft start's first pair


class TeachingTarget:
    """A frozen model, asked for features, and for what they say about draft tokens."""

    def __init__(
        self, model: PreTrainedModel, facts: ModelFacts, aux_layers: Sequence[int], target_ids: Tensor
    ) -> None:
        """target_ids [draft_vocab]. Raises ModelError when the output layer is more than a product that we know."""
        self.model = model
        self.facts = facts
        self.aux_layers = tuple(aux_layers)
        self.device = next(model.parameters()).device
        self.embed = model.get_input_embeddings()
        output, config = model.get_output_embeddings(), model.config
        ids = target_ids.to(self.device)
        self.output_weight = _tensor(output, "weight")[ids].float()
        self._bias = None if getattr(output, "bias", None) is None else _tensor(output, "bias")[ids].float()
        self._scale = getattr(config, "logit_scale", None) or 1.0 / (getattr(config, "logits_scaling", None) or 1.0)
        self._soft_cap = getattr(config, "final_logit_softcapping", None)
        self._check(ids)

    @property
    def hidden_size(self) -> int:
        return int(_tensor(self.embed, "weight").shape[1])

    @property
    def final_norm(self) -> Tensor | None:
        """Weight [hidden] of the norm before the output layer in float32, where the model has one by the usual name."""
        weight = getattr(getattr(self.model.base_model, "norm", None), "weight", None)
        return weight.float() if isinstance(weight, Tensor) else None

    @torch.no_grad()
    def features(self, batch: Batch) -> Features:
        """One pass over a batch. Padding comes after every row that could see it."""
        output = self.model.base_model(
            input_ids=batch.rows.spread(batch.ids), output_hidden_states=list(self.aux_layers), use_cache=False
        )
        aux = torch.cat([batch.rows.gather(output.hidden_states[layer]) for layer in self.aux_layers], dim=-1)
        return Features(aux, batch.rows.gather(output.last_hidden_state)[batch.start + 1])

    @torch.no_grad()
    def probabilities(self, final: Tensor) -> Tensor:
        """[M, hidden] -> [M, draft_vocab] in float32: next-token distributions within the draft vocabulary."""
        return self._logits(final).softmax(-1)

    @torch.no_grad()
    def embeddings(self, ids: Tensor) -> Tensor:
        """[N] -> [N, hidden] in float32."""
        rows: Tensor = self.embed(ids)
        return rows.float()

    def _logits(self, final: Tensor) -> Tensor:
        logits = linear(final.float(), self.output_weight, self._bias) * self._scale
        return logits if self._soft_cap is None else torch.tanh(logits / self._soft_cap) * self._soft_cap

    @torch.no_grad()
    def _check(self, ids: Tensor) -> None:
        tokens = torch.arange(CHECK_IDS, device=self.device)[None]
        true = self.model(input_ids=tokens, use_cache=False).logits[0, :, ids].float()
        ours = self._logits(self.model.base_model(input_ids=tokens, use_cache=False).last_hidden_state[0])
        if not torch.allclose(ours, true, rtol=0.0, atol=LOGIT_TOLERANCE * float(true.std())):
            raise ModelError(
                f"the logits of {self.model.config.model_type} are not a plain product of its hidden states"
            )


def load_target(
    path: str, *, dtype: str, device: torch.device, max_len: int | None
) -> tuple[PreTrainedModel, ModelFacts]:
    """The model with its own attention and our matrix kernels. Raises ModelError or ConfigError."""
    config = model_config.read_config(path)
    model_config.check_config(config)
    longest = model_config.choose_max_len(config, max_len)
    torch_dtype = model_config.choose_dtype(dtype, config)
    model = models.load_weights(path, torch_dtype, device)
    models.use_own_attention(model)
    facts = models.model_facts(path, model, torch_dtype, longest)
    install_kernels(model, "fast", allow_packing=packed_bytes(model) < PACKED_SHARE * free_bytes(device))
    return model, facts


def _tensor(module: torch.nn.Module | None, name: str) -> Tensor:
    value = getattr(module, name)
    assert isinstance(value, Tensor)
    return value
