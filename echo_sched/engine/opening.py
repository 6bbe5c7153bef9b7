"""Opens a target: settings are checked before weights are read, and the weights before anything is served."""

import logging
from copy import copy

import torch

from echo_sched.engine import model_config, models
from echo_sched.engine.forward import Target
from echo_sched.engine.kernels import Numerics
from echo_sched.engine.kv import GIB, KVCache, fit_slots, slot_len
from echo_sched.engine.memory import free_bytes
from echo_sched.engine.probe import plain_logits, probe
from echo_sched.errors import ConfigError

logger = logging.getLogger(__name__)


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
    """Load and probe a target: `num_slots` requests of `max_model_len` tokens, `tail_len` places for draft nodes each.

    `max_model_len` None: as long as the model can, up to a default.

    Raises ModelError when the model cannot be served exactly, ConfigError when the settings do not fit.
    """
    config = model_config.read_config(path)
    model_config.check_config(config)
    longest = model_config.choose_max_len(config, max_model_len)
    torch_dtype = model_config.choose_dtype(dtype, config)
    shape, max_len = model_config.kv_shape(config), slot_len(longest, tail_len)
    num_bytes = fit_slots(
        shape, torch_dtype, num_slots=num_slots, max_len=max_len, free=free_bytes(device), limit_gib=kv_limit_gib
    )
    logger.info("KV cache: %d slots x %d tokens = %.2f GiB in %s", num_slots, max_len, num_bytes / GIB, torch_dtype)
    tokenizer = models.load_tokenizer(path)
    try:
        model = models.load_weights(path, torch_dtype, device)
        kv = KVCache(shape, num_slots=num_slots, max_len=max_len, dtype=torch_dtype, device=device)
    except torch.OutOfMemoryError as error:
        raise ConfigError(f"weights and KV cache do not fit into the memory of {device}: lower --kv-memory") from error
    facts = models.model_facts(path, model, torch_dtype, longest)
    expected = plain_logits(model)  # by the model's own code, before any kernel is replaced
    target = Target(model, facts, kv, numerics, tokenizer=tokenizer)
    probe(target, expected)
    return target


def beside(target: Target, *, num_slots: int) -> Target:
    """A target of the same weights with a cache of its own, of `num_slots` slots as long as `target`'s.

    Raises ConfigError where memory has no room for it.
    """
    kv, facts = target.kv, target.facts
    free = free_bytes(target.device)
    fit_slots(kv.shape, facts.dtype, num_slots=num_slots, max_len=kv.max_len, free=free, limit_gib=None)
    other = copy(target)
    other.kv = KVCache(kv.shape, num_slots=num_slots, max_len=kv.max_len, dtype=facts.dtype, device=target.device)
    return other
