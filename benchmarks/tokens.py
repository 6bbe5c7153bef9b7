"""Turns the prompts of a load test into what is sent: token ids where a tokenizer is at hand, plain text otherwise.

The only part of a load test that knows transformers.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from echo_sched.errors import ConfigError, EchoSchedError
from echo_sched.fetch import resolve_model
from echo_sched.prompts import ChatTemplate, Prompt, encode_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def encode_all(
    prompts: Sequence[Prompt], tokenizer_path: str | None, chat_template: ChatTemplate, explicit: bool
) -> list[str | list[int]]:
    """Token ids for every prompt, or its text if no tokenizer can be read and none is needed.

    `explicit`: the caller named the tokenizer. Raises ConfigError when that one cannot be read, or when none can and a
    prompt needs a chat template.
    """
    try:
        if tokenizer_path is None:
            raise ConfigError("the server does not say where its tokenizer is")
        tokenizer = _load(tokenizer_path)
    except EchoSchedError as error:
        texts = [prompt.text for prompt in prompts if prompt.messages is None and prompt.text is not None]
        if explicit or chat_template == "always" or len(texts) < len(prompts):
            raise ConfigError(f"no tokenizer to encode the prompts with ({error}): give --tokenizer PATH") from error
        return list(texts)
    return [encode_prompt(tokenizer, prompt, chat_template) for prompt in prompts]


def _load(path: str) -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer  # slow to import; bad flags should answer at once

    try:
        # a folder may hold a tokenizer and no model, which resolve_model would refuse
        return AutoTokenizer.from_pretrained(path if Path(path).is_dir() else resolve_model(path))
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ConfigError(f"{path}: {str(error).partition(chr(10))[0] or type(error).__name__}") from error
