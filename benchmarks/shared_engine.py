"""One loaded engine for all arms of a comparison, and what is asked of it beside the trials.

Loads torch only when an engine is opened: bad flags and files should answer at once.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.exactness import Tokens
from echo_sched.arms import REFERENCE, Arm
from echo_sched.config import EngineConfig
from echo_sched.errors import DataError
from echo_sched.prompts import ChatTemplate, Prompt, encode_prompt
from echo_sched.types import SamplingParams

if TYPE_CHECKING:
    from echo_sched.loop import DecodeLoop


def open_engine(arms: Sequence[Arm], base: EngineConfig, *, recording: bool) -> "DecodeLoop":
    """Arms share one cache and one table of costs: it is loaded for the largest budget and batch, and as an arm
    that reckons.

    `base` is opened where no arm drafts. Raises ConfigError, ModelError, ProfileError.
    """
    from echo_sched.loop import DecodeLoop

    drafting = [arm.config for arm in arms if arm.config.policy != REFERENCE]
    first = next((config for config in drafting if config.k_max), base)
    price = "on" if any(config.price == "on" for config in drafting) else "off"
    most = {name: max(getattr(arm.config, name) for arm in arms) for name in ("k_max", "max_batch_size")}
    widest = first.model_copy(update={**most, "price": price, "profile": base.profile})
    return DecodeLoop.from_config(widest, recording=recording)


def encode_fitting(
    loop: "DecodeLoop", prompts: Sequence[Prompt], max_new_tokens: int, chat_template: ChatTemplate, source: str
) -> list[tuple[int, ...] | None]:
    """Token ids of each prompt, None where it and its answer do not fit. Raises DataError when none does."""
    encoded = [tuple(encode_prompt(loop.tokenizer, prompt, chat_template)) for prompt in prompts]
    fitting = [ids if 0 < len(ids) <= loop.max_model_len - max_new_tokens else None for ids in encoded]
    if not any(fitting):
        raise DataError(
            f"{source}: no prompt fits: --max-new-tokens {max_new_tokens} and the shortest prompt "
            f"({min(map(len, encoded))} tokens) exceed the context of {loop.max_model_len}"
        )
    return fitting


def margin(loop: "DecodeLoop", prompt: Tokens, output: Tokens, params: SamplingParams) -> float:
    """How near the choice after prompt and output was to going the other way, from logits computed plainly."""
    from echo_sched.engine.reference import choose
    from echo_sched.loop.scoring import score

    logits = score(loop, (*prompt, *output)).double().cpu().numpy()
    return choose(logits, params, prompt, output, tuple(loop.target.facts.eos_ids)).margin
