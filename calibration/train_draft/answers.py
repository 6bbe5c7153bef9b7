"""The target's own answers to a file of prompts, in bulk, as a generations file.

Written prompt by prompt, so that a stopped run continues where it was. Knows the loop; does not know what the answers
are for.
"""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from calibration.collect import Loop, draw_sample
from echo_sched.errors import DataError
from echo_sched.prompts import ChatTemplate, Prompt
from echo_sched.types import Request, SamplingParams

SAMPLED_SHARE = 0.3  # of the prompts are answered at SAMPLED_TEMPERATURE, the others greedily
SAMPLED_TEMPERATURE = 0.8


def answer_prompts(
    loop: Loop,
    prompts: Sequence[Prompt],
    path: Path,
    *,
    max_new_tokens: int,
    max_prompts: int,
    chat_template: ChatTemplate,
    concurrency: int,
    seed: int,
    report: Callable[[int, int], None],
) -> None:
    """Append a row per prompt to `path` (JSON Lines); prompts that have one are not asked again.

    `report(prompts done, prompts)` follows each answer. Raises DataError when no prompt is usable.
    """
    params = SamplingParams(max_new_tokens=max_new_tokens, temperature=0.0, seed=seed)
    sample = draw_sample(loop, prompts, params, max_prompts=max_prompts, chat_template=chat_template)
    by_row = {f"row-{prompt.source_row}": prompt for prompt in prompts}
    answered = _answered(path)
    waiting = [
        replace(request, params=replace(request.params, temperature=_temperature(request, seed)))
        for request in reversed(sample.requests)
        if request.request_id not in answered
    ]
    total, running = len(sample.requests), 0
    with path.open("a", encoding="utf-8") as file:
        while waiting or loop.has_work:
            while waiting and running < concurrency:
                loop.add(waiting.pop())
                running += 1
            for event in loop.step():
                if event.finish is not None:
                    running -= 1
                    print(json.dumps(_row(event.request, by_row, loop.tokenizer)), file=file, flush=True)
                    report(total - len(waiting) - running, total)


def _row(request: Request, by_row: dict[str, Prompt], tokenizer: Any) -> dict[str, Any]:
    prompt = by_row[request.request_id]
    assert request.finish is not None
    return {
        "id": request.request_id,
        "source": prompt.category or "unnamed",
        **({"prompt": prompt.text} if prompt.messages is None else {"messages": list(prompt.messages)}),
        "temperature": request.params.temperature,
        "response": tokenizer.decode(request.output_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False),
        "response_ids": request.output_ids,
        "finish_reason": request.finish.type,
    }


def _temperature(request: Request, seed: int) -> float:
    return SAMPLED_TEMPERATURE if random.Random(f"{seed}/{request.request_id}").random() < SAMPLED_SHARE else 0.0


def _answered(path: Path) -> set[str]:
    """Ids of the whole rows of an earlier run; a row that broke off is cut away."""
    if not path.exists():
        return set()
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    try:
        return {json.loads(line)["id"] for line in whole.splitlines()}
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not a file of answers that this command wrote") from error
