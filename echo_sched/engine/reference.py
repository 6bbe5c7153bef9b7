"""The slow twin: decodes one token at a time with transformers' own attention, and chooses the naive way (choice.py).

It shares no code with the engine except the keyed random numbers, so that agreement means something.

Knows nothing of batches, drafts or packed caches.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from transformers import DynamicCache

from echo_sched.engine.choice import Language, continuations, draw, margin, processed
from echo_sched.tree import FloatArray
from echo_sched.types import FinishReason, SamplingParams


class Choice(NamedTuple):
    """One token and its distance from the nearest other choice, in logits (choice.py; inf where there is none)."""

    token_id: int
    margin: float


class ReferenceResult(NamedTuple):
    """What plain decoding emits: the EOS or stop id that ended it is the last of `output_ids`; one margin per token."""

    output_ids: list[int]
    finish: FinishReason
    margins: list[float]


def reference_decode(
    model: Any,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    eos_ids: Sequence[int],
    *,
    use_cache: bool = False,
    decode: Callable[[Sequence[int]], str] | None = None,
    language: Language | None = None,
) -> ReferenceResult:
    """Decode one request plainly with a transformers causal language model.

    `use_cache=False` recomputes everything for every token; True uses transformers' `DynamicCache`. `decode` turns
    output ids into text and is needed for stop strings. `language` is what the output must be where the params say so.
    Nothing is sized or clamped here: the caller keeps prompt + max_new_tokens within the model's context.
    """
    assert (language is None) == (params.grammar is None), "a schema or regex needs its language"
    assert decode is not None or not params.stop, "stop strings need `decode`"
    tokens = list(prompt_ids)
    output_ids: list[int] = []
    margins: list[float] = []
    cache = DynamicCache(config=model.config) if use_cache else None
    num_cached = 0
    while True:
        new_ids = torch.tensor([tokens[num_cached:]], device=model.device)
        with torch.no_grad():
            logits = model(new_ids, cache=cache, use_cache=use_cache).logits[0, -1]
        num_cached = len(tokens) if use_cache else 0
        choice = choose(logits.double().cpu().numpy(), params, prompt_ids, output_ids, eos_ids, language)
        tokens.append(choice.token_id)
        output_ids.append(choice.token_id)
        margins.append(choice.margin)
        finish = _finish(output_ids, params, eos_ids, decode)
        if language is not None and (finish is None or finish.type == "length"):
            is_complete = language.holds(output_ids) and not continuations(language, output_ids, logits.numel())
            finish = FinishReason("stop") if is_complete else finish
        if finish is not None:
            return ReferenceResult(output_ids, finish, margins)


def _finish(
    output_ids: list[int], params: SamplingParams, eos_ids: Sequence[int], decode: Callable[[Sequence[int]], str] | None
) -> FinishReason | None:
    last = output_ids[-1]
    if last in params.stop_token_ids or (last in eos_ids and not params.ignore_eos):
        return FinishReason("stop", last)
    text, exempt = "", 0
    if decode is not None and params.stop:
        text = decode(output_ids)
        exempt = len(decode(output_ids[: params.min_new_tokens]).rstrip("\ufffd"))  # a broken character is not out yet
    # A stop string counts where it ends behind the text of min_new_tokens.
    starts = [(text.find(stop, max(0, exempt - len(stop) + 1)), stop) for stop in params.stop]
    ends = [(start + len(stop), -len(stop), stop) for start, stop in starts if start >= 0]
    if ends:  # the one that completes first, then the longest
        return FinishReason("stop", min(ends)[2])
    return FinishReason("length") if len(output_ids) == params.max_new_tokens else None


def choose(
    logits: FloatArray,
    params: SamplingParams,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    eos_ids: Sequence[int],
    language: Language | None = None,
) -> Choice:
    """The choice after `prompt_ids` and `output_ids`, given the model's logits [V] in float64."""
    row = processed(logits, params, prompt_ids, output_ids, eos_ids, language)
    position = len(prompt_ids) + len(output_ids)
    return Choice(draw(row, params, position), margin(row, params, position))
