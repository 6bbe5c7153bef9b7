"""Reads prompt files of every common layout, and turns one prompt into token ids.

files.py      a file: JSON Lines or one JSON document, gzipped or not; broken rows are counted and never fatal
rows.py       a row: plain text, or a chat that is cut after its last user message
encoding.py   a prompt's token ids

Nothing here knows torch, transformers or what the prompts are for; the tokenizer is a Protocol.
"""

from echo_sched.prompts.encoding import ChatTemplate, encode_prompt
from echo_sched.prompts.files import PromptFile, load_prompts, load_rows
from echo_sched.prompts.rows import Prompt

__all__ = ["ChatTemplate", "Prompt", "PromptFile", "encode_prompt", "load_prompts", "load_rows"]
