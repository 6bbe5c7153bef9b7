"""One prompt as token ids."""

from typing import Any, Literal, Protocol

from echo_sched.errors import DataError
from echo_sched.prompts.rows import Prompt

ChatTemplate = Literal["auto", "always", "never"]


class Tokenizer(Protocol):
    """The little of a transformers tokenizer that is used here."""

    @property
    def chat_template(self) -> Any: ...

    def apply_chat_template(self, conversation: Any, *, tokenize: bool, add_generation_prompt: bool) -> Any: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> Any: ...


def encode_prompt(tokenizer: Tokenizer, prompt: Prompt, chat_template: ChatTemplate = "auto") -> list[int]:
    """Token ids of a prompt.

    auto: the tokenizer's chat template where the prompt is a chat and the tokenizer has one; always: text becomes a
    user message; never: the contents of a chat, joined by blank lines. A template writes its own special tokens (BOS
    among them), so the tokenizer adds none to what a template wrote.
    Raises DataError when a template is demanded and there is none, or when it refuses the messages.
    """
    if chat_template == "always" and not tokenizer.chat_template:
        raise DataError("the tokenizer has no chat template, so chat_template 'always' cannot be followed")
    chat = prompt.messages or ({"role": "user", "content": prompt.text or ""},)
    templated = chat_template == "always" or (chat_template == "auto" and prompt.messages and tokenizer.chat_template)
    if not templated:
        text = "\n\n".join(message["content"] for message in chat)
        return list(tokenizer.encode(text, add_special_tokens=True))
    try:
        rendered = tokenizer.apply_chat_template(list(chat), tokenize=False, add_generation_prompt=True)
    except Exception as error:  # a template is code that came with the checkpoint and may raise anything
        roles = ", ".join(message["role"] for message in chat)
        reason = " ".join(str(error).split())
        raise DataError(f"row {prompt.source_row}: the chat template refuses the roles {roles}: {reason}") from error
    return list(tokenizer.encode(rendered, add_special_tokens=False))
