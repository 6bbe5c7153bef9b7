"""Every family, row by row: packed trees and prompt chunks have the logits of the plain model, which sees one path."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from echo_sched.engine import model_config
from echo_sched.engine.reference import reference_decode
from echo_sched.types import Request, SamplingParams
from tests.fakes import ScriptedDrafter
from tests.loops import mixed_requests, references, run, tiny_loop, tiny_target
from tests.rows import Driver, Rows, chunk, lone_rows, plain_rows, random_tree
from tests.tiny_models import (
    FAMILIES,
    FULL,
    MAX_POSITIONS,
    ROPE,
    SLIDING,
    SLIDING_WINDOW,
    VOCAB_SIZE,
    random_prompt,
    tiny_model,
)

# Norms and rotary tables are float32 in every family, so float64 logits agree to float32's rounding.
TOLERANCE = 2e-5
CHUNK_LEN = 29  # of prompts computed alone: cut elsewhere than those of the mixed batch


def mixed_steps(driver: Driver) -> Iterator[tuple[Mapping[str, Rows], Mapping[str, Tensor]]]:
    """Three requests side by side, their rows and logits: prompts in chunks, a lone root, trees whose kept rows move,
    and contexts on both sides of the sliding window."""
    prompts = {name: random_prompt(length, seed=length) for name, length in (("a", 37), ("b", 5), ("c", 70))}
    steps: list[dict[str, tuple[Rows, list[int]]]] = [
        {
            "a": whole(chunk(prompts["a"][:20])),
            "b": whole(chunk(prompts["b"])),
            "c": whole(chunk(prompts["c"][:30])),
        },
        {"a": whole(chunk(prompts["a"][20:])), "b": longest(random_tree(9, 1)), "c": whole(chunk(prompts["c"][30:58]))},
        {"a": longest(random_tree(12, 2)), "b": longest(random_tree(7, 3)), "c": whole(chunk(prompts["c"][58:]))},
        {"a": longest(random_tree(5, 4)), "b": whole(chunk([17])), "c": longest(random_tree(10, 5))},
    ]
    for step in steps:
        parts = {name: rows for name, (rows, _) in step.items()}
        yield parts, driver.forward(parts)
        driver.commit(step)


def whole(rows: Rows) -> tuple[Rows, list[int]]:
    return rows, list(range(len(rows.tokens)))


def longest(rows: Rows) -> tuple[Rows, list[int]]:
    """The longest path of a tree, which leaves rejected siblings in between."""
    return rows, max((rows.path(leaf) for leaf in rows.leaves()), key=len)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_row_of_a_mixed_batch_has_the_plain_models_logits(family: str) -> None:
    driver, model = Driver(tiny_target(family), "abc"), tiny_model(family)
    for parts, logits in mixed_steps(driver):
        for name, rows in parts.items():
            expected = plain_rows(model, driver.committed[name], rows)
            torch.testing.assert_close(
                logits[name], expected, rtol=0, atol=TOLERANCE, msg=lambda m, n=name: f"{n}: {m}"
            )
    assert len(driver.committed["b"]) < SLIDING_WINDOW < len(driver.committed["a"]) < len(driver.committed["c"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_exact_rows_are_bitwise_those_of_a_row_alone(family: str, dtype: torch.dtype) -> None:
    """float64 is the strictest: there no rounding of the result hides a difference."""
    target = tiny_target(family, dtype=dtype, numerics="exact")
    driver = Driver(target, "abc")
    for step, (parts, logits) in enumerate(mixed_steps(driver)):
        for name, rows in parts.items() if step else ():  # the first are plain prompts
            assert torch.equal(logits[name], lone_rows(target, driver.committed[name], rows, CHUNK_LEN)), name


def test_a_rows_experts_do_not_depend_on_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to rounding in fast numerics, while neighbours crowd the same experts: none has a capacity."""
    target = tiny_target("qwen3_moe")
    crowd = Counter[int]()
    experts = type(target.model.model.layers[0].mlp.experts)  # type: ignore[union-attr]
    forward = experts.forward

    def counting(self: Any, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        crowd.update(chosen.flatten().tolist())
        return forward(self, hidden, chosen, weights)  # type: ignore[no-any-return]

    monkeypatch.setattr(experts, "forward", counting)
    driver = Driver(target, "abc")
    for parts, logits in mixed_steps(driver):
        for name, rows in parts.items():
            alone = lone_rows(target, driver.committed[name], rows, CHUNK_LEN)
            torch.testing.assert_close(logits[name], alone, rtol=0, atol=TOLERANCE)
    assert len(crowd) == target.model.config.num_experts


# What makes a family special -> its settings without it.
SPECIAL: dict[str, dict[str, Any]] = {
    "llama, tied": {"rotary scaling": {"rope_parameters": ROPE | {"rope_type": "default"}}},
    "qwen2": {
        "window in some layers": {"max_window_layers": 3},
        "full attention in the others": {"max_window_layers": 0},
        "rotary scaling": {"rope_parameters": ROPE | {"rope_type": "default"}},
    },
    "qwen3": {"rotary scaling": {"rope_parameters": ROPE | {"rope_type": "default"}}},
    "qwen3_moe": {"experts": {"num_experts_per_tok": 1}, "norm of their weights": {"norm_topk_prob": False}},
    "mistral": {"window": {"sliding_window": None}},
    "gemma2": {
        "window": {"layer_types": [FULL] * 3},
        "full attention": {"layer_types": [SLIDING] * 3},
        "cap of scores": {"attn_logit_softcapping": None},
        "cap of logits": {"final_logit_softcapping": None},
        "scale of scores": {"query_pre_attn_scalar": 8},
    },
    "gemma3": {
        "window": {"layer_types": [FULL] * 3},
        "full attention": {"layer_types": [SLIDING] * 3},
        "cap of logits": {"final_logit_softcapping": None},
        "rotary tables per layer type": {"rope_parameters": {FULL: ROPE, SLIDING: ROPE}},
    },
    "phi3": {
        "window": {"sliding_window": None},
        "partial rotary": {"rope_parameters": ROPE | {"rope_type": "default", "partial_rotary_factor": 1.0}},
        "rotary scaling": {"rope_parameters": ROPE | {"rope_type": "default", "partial_rotary_factor": 0.5}},
    },
    "granite": {
        name: {name: 1.0}
        for name in ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
    },
    "smollm3": {
        "layers without positions": {"no_rope_layers": [1, 1, 1], "layer_types": [FULL, SLIDING, FULL]},
        "window": {"use_sliding_window": False},
    },
    "gpt2": {"scale by layer": {"scale_attn_by_inverse_layer_idx": False}},
    "gpt_neox": {
        "partial rotary": {"rope_parameters": ROPE | {"partial_rotary_factor": 1.0}},
        "parallel residual": {"use_parallel_residual": False},
    },
    "opt, projected": {"norm after attention": {"do_layer_norm_before": True, "_remove_final_layer_norm": True}},
}


@pytest.mark.parametrize(("family", "what"), [(family, what) for family in SPECIAL for what in SPECIAL[family]])
def test_what_is_special_about_a_family_shows_in_its_logits(family: str, what: str) -> None:
    """So the tests above and below would notice an engine that passes over it."""
    prompt = chunk(random_prompt(40))
    with_it, without = (
        plain_rows(model, [], prompt) for model in (tiny_model(family), tiny_model(family, **SPECIAL[family][what]))
    )
    assert (with_it - without).abs().max() > 1000 * TOLERANCE


@pytest.mark.parametrize("family", ["gpt2", "gemma3", "opt"])
def test_a_prompt_up_to_the_models_limit_in_chunks_beside_trees(family: str) -> None:
    """Logits of the last chunk and of a tree that ends at the last position; its neighbours grow meanwhile."""
    driver = Driver(tiny_target(family, max_model_len=MAX_POSITIONS), "ab")
    model, prompt, step = tiny_model(family), random_prompt(MAX_POSITIONS - 4), 0
    while len(driver.committed["a"]) < len(prompt):
        part = chunk(prompt[len(driver.committed["a"]) :][:60])
        tree = random_tree(6, step)
        logits = driver.forward({"a": part, "b": tree})
        step += 1
        if step == 1 or len(driver.committed["a"]) + len(part.tokens) == len(prompt):
            for name, rows in (("a", part), ("b", tree)):
                expected = plain_rows(model, driver.committed[name], rows)
                torch.testing.assert_close(logits[name], expected, rtol=0, atol=TOLERANCE)
        driver.commit({"a": whole(part), "b": longest(tree)})
    last = Rows([3, 4, 5, 6, 7, 8], [-1, 0, 0, 1, 2, 4])  # root at the limit - 4, two nodes below at the last position
    logits = driver.forward({"a": last, "b": random_tree(6, step)})
    expected = plain_rows(model, driver.committed["a"], last)
    torch.testing.assert_close(logits["a"], expected, rtol=0, atol=TOLERANCE)
    assert len(driver.committed["a"]) + max(len(last.path(row)) for row in range(6)) == MAX_POSITIONS


@pytest.mark.parametrize("family", ["gpt2", "gemma3", "phi3"])
def test_a_request_that_fills_the_context_emits_what_plain_decoding_emits(family: str) -> None:
    """Through the loop: prompt chunks beside running decodes, then drafts up to the last position."""
    limit = model_config.choose_max_len(tiny_model(family).config, None)
    params = SamplingParams(max_new_tokens=12, temperature=0.0, ignore_eos=True)
    full = Request("full", random_prompt(limit - 12), params)
    expected = reference_decode(tiny_model(family), full.prompt_ids, params, ()).output_ids
    others = mixed_requests(3)
    script = {request.request_id: references(family, 3)[request.request_id].output_ids for request in others}
    drafter = ScriptedDrafter(script | {"full": expected}, (0.9,), VOCAB_SIZE)
    target = tiny_target(family, max_model_len=limit)
    run(tiny_loop(target, drafter, max_depth=8, chunk_tokens=60), [*others, full])
    assert full.output_ids == expected
    assert {request.request_id: request.output_ids for request in others} == script
    assert full.stats.num_accepted > 3
