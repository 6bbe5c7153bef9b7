"""Which hidden states of the target an EAGLE-3 head reads: found out from its config.json, and written into one.

0 is the embeddings, i the output of layer i - 1, num_layers the final state after its norm. It is told in four ways:

    echo_sched_aux_layers                           ours, written by `save_head`: indices as they are
    eagle_aux_hidden_state_layer_ids                vLLM and speculators: indices as they are
    eagle_config.eagle_aux_hidden_state_layer_ids   SGLang and its trainers: numbers of layers, index = number + 1
    nothing                                         the usual rule, (2, n // 2, n - 3): a guess, and a warning
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from echo_sched.errors import ModelError

logger = logging.getLogger(__name__)

_IDS = "eagle_aux_hidden_state_layer_ids"
_OWN_IDS = "echo_sched_aux_layers"


def default_aux_layers(num_layers: int) -> tuple[int, ...]:
    """The usual rule: a low, a middle and a high hidden state."""
    return 2, num_layers // 2, num_layers - 3


def find_aux_layers(
    path: Path, raw: Mapping[str, Any], *, num_layers: int, num_aux: int, override: tuple[int, ...] | None
) -> tuple[int, ...]:
    """`num_aux` indices, of a target with so many layers; `override` instead of what `raw` tells. Raises ModelError."""
    layers = override or _told_layers(raw, num_layers)
    if layers is None:
        layers = default_aux_layers(num_layers) if num_aux != 1 else (num_layers,)
        logger.warning(
            "%s does not say which hidden states of the target it reads; guessing %s. If few drafts are accepted, set "
            "--draft-aux-layers",
            path,
            ",".join(map(str, layers)),
        )
    if len(layers) != num_aux:
        raise ModelError(
            f"{path}: the head reads {num_aux} hidden states of the target, but {len(layers)} are named "
            f"({','.join(map(str, layers))}); set --draft-aux-layers"
        )
    wrong = [layer for layer in layers if not 0 <= layer <= num_layers]
    if wrong:
        raise ModelError(f"{path}: the target has no hidden state {wrong[0]}; they are 0 to {num_layers}")
    return layers


def named_aux_layers(aux_layers: tuple[int, ...], num_layers: int) -> dict[str, Any]:
    """What a config.json says of them.

    The layer ids are left out where they are the usual ones: engines disagree about what explicit ids mean, so others
    are written in both meanings, each where the engine of that meaning looks.
    """
    named: dict[str, Any] = {_OWN_IDS: list(aux_layers)}
    if aux_layers != default_aux_layers(num_layers):
        named[_IDS] = list(aux_layers)
        named["num_aux_hidden_states"] = len(aux_layers)
        named["eagle_config"] = {_IDS: [layer - 1 for layer in aux_layers]}
    return named


def _told_layers(raw: Mapping[str, Any], num_layers: int) -> tuple[int, ...] | None:
    eagle: Mapping[str, Any] = raw.get("eagle_config") or {}
    if eagle.get("use_aux_hidden_state") is False:
        return (num_layers,)
    if raw.get(_OWN_IDS) or raw.get(_IDS):
        return tuple(int(layer) for layer in raw.get(_OWN_IDS) or raw[_IDS])
    return tuple(int(layer) + 1 for layer in eagle[_IDS]) if eagle.get(_IDS) else None
