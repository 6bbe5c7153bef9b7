"""Opens a draft model for a loaded target: the target's load rule, probe and precision, fast kernels, KV of its own."""

import logging

from echo_sched.engine import model_config
from echo_sched.engine.draft.lm.drafter import LMDrafter
from echo_sched.engine.draft.lm.vocabulary import shared_vocabulary
from echo_sched.engine.forward import Target
from echo_sched.engine.opening import open_target
from echo_sched.errors import ConfigError, ModelError

logger = logging.getLogger(__name__)


def check_draft_model(name: str, folder: str) -> None:
    """The load rule, as far as a config tells. Raises ModelError."""
    try:
        model_config.check_config(model_config.read_config(folder))
    except ModelError as error:
        raise _named(name, error) from error


def open_lm(name: str, folder: str, target: Target, *, coupled: bool = False) -> LMDrafter:
    """A drafter for as many requests as the target's cache holds, as long as both models can take them.

    `name` is what messages call the model. Raises ModelError when it cannot be served or has another tokenizer,
    ConfigError when it does not fit into memory.
    """
    try:
        longest, _ = model_config.longest_request(model_config.read_config(folder))
        model = open_target(
            folder,
            dtype=str(target.facts.dtype).removeprefix("torch."),
            numerics="fast",  # what is drafted never changes a token
            device=target.device,
            num_slots=target.kv.num_slots,
            max_model_len=min(longest, target.facts.max_model_len),
            tail_len=target.kv.max_len - target.facts.max_model_len,
            kv_limit_gib=None,
        )
        shared = shared_vocabulary(target.tokenizer, model.tokenizer, target.facts.vocab_size, model.facts.vocab_size)
    except (ConfigError, ModelError) as error:
        raise _named(name, error) from error
    length = model.facts.max_model_len
    logger.info("draft model %s: %d tokens shared with the target, drafts up to %d positions", name, shared, length)
    return LMDrafter(model, shared, coupled=coupled)


def _named(name: str, error: ConfigError | ModelError) -> ConfigError | ModelError:
    return type(error)(f"the draft model {name}: {error}")
