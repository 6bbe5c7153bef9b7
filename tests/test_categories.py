"""Kinds of prompts, and what is said of each."""

import pytest

from calibration.categories import category_of, category_stats
from echo_sched.types import GateReading, Request, SamplingParams


@pytest.mark.parametrize(
    ("category", "file_name", "kind"),
    [
        ("coding", "mt_bench_question.jsonl", "code"),
        ("math", "mt_bench_question.jsonl", "maths"),
        ("writing", "mt_bench_question.jsonl", "chat"),
        ("gsm8k_train", "smollm2_generations.jsonl.gz", "maths"),
        ("oasst", "smollm2_generations.jsonl.gz", "chat"),
        (None, "HumanEval.jsonl.gz", "code"),
        (None, "gsm8k_test.jsonl", "maths"),
        (None, "data.jsonl", "other"),
        ("poetry", "data.jsonl", "other"),
        ("chat", "HumanEval.jsonl.gz", "chat"),  # the row knows better
    ],
)
def test_a_row_says_its_kind_and_else_its_file(category: str | None, file_name: str, kind: str) -> None:
    assert category_of(category, file_name) == kind


def served(name: str, num_steps: int, num_emitted: int) -> Request:
    request = Request(name, (1,), SamplingParams())
    request.stats.num_verify_steps, request.stats.num_emitted = num_steps, num_emitted
    return request


def test_each_kind_gets_its_own_numbers() -> None:
    requests = [served("a", 4, 10), served("b", 4, 6), served("c", 2, 2), served("silent", 0, 0)]
    kinds = {"a": "code", "b": "code", "c": "chat", "silent": "other"}
    readings = [
        *(GateReading(step, "a", 1, 0.9, True) for step in range(3)),
        GateReading(3, "a", 1, 0.2, False),
        *(GateReading(step, "a", 2, 0.5, step == 0) for step in range(2)),
        *(GateReading(step, "c", 1, 0.5, False) for step in range(2)),
    ]
    chat, code, other = category_stats(readings, requests, kinds, 3)
    assert (code.category, code.num_prompts, code.share_of_steps, code.tokens_per_step) == ("code", 2, 0.8, 2.0)
    assert code.acceptance == (0.75, 0.5, None) and code.auc == (1.0, 0.5, None)
    assert (chat.category, chat.tokens_per_step, chat.acceptance, chat.auc) == (
        "chat",
        1.0,
        (0.0, None, None),
        (None,) * 3,
    )
    assert (other.share_of_steps, other.tokens_per_step) == (0.0, None)
