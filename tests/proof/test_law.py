"""Speculation emits tokens by the target's own law; wrong rules of acceptance do not, and both kinds of test see it."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from echo_sched.engine.accept import Walk, accept
from echo_sched.engine.reference import reference_decode
from echo_sched.engine.sampling import sample
from echo_sched.loop import drawing as drawing_module
from echo_sched.tree import ROOT, FloatArray
from echo_sched.types import SamplingParams
from tests.counts import Counts
from tests.proof.law import NUM_TOKENS, VOCAB_SIZE, PValues, drawn, exact_law, p_values
from tests.proof.sizes import Sized
from tests.tiny_models import tiny_model

SURE = 1e-3  # seeds are fixed, so this is decided once and for all: no right rule came below, and chance rarely would
IMPOSSIBLE = 1e-9  # every planted rule fell below
PROMPT = (3, 8, 3, 1)
NUM_PROPOSED = 4
PLAIN = SamplingParams(max_new_tokens=NUM_TOKENS, temperature=1.0, ignore_eos=True)
FIELDS: dict[str, dict[str, Any]] = {
    "temperature 1": {},
    "temperature 0.6": {"temperature": 0.6},
    "top-k, top-p, min-p": {"temperature": 1.5, "top_k": 6, "top_p": 0.95, "min_p": 0.02},
    "penalties and bias": {
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.7,
        "presence_penalty": -0.5,
        "logit_bias": ((2, 1.0), (5, -1.0)),
        "bad_token_ids": (6,),
    },
}
POLICIES: dict[str, dict[str, Any]] = {
    "off": {"policy": "off"},
    "static": {"policy": "static"},
    "dynamic": {"policy": "dynamic"},
    "echo": {"policy": "echo"},
}


def params_of(fields: str) -> SamplingParams:
    return SamplingParams(**vars(PLAIN) | FIELDS[fields])


@cache
def law_of(fields: str) -> FloatArray:
    return exact_law(PROMPT, params_of(fields))


@cache
def expected_of(fields: str, count: int) -> list[list[int]]:
    """What the slow twin emits for seeds 0, 1, 2, ..."""
    model, params = tiny_model("llama", vocab_size=VOCAB_SIZE), vars(params_of(fields))
    seeded = [SamplingParams(**params | {"seed": seed}) for seed in range(count)]
    return [reference_decode(model, PROMPT, one, ()).output_ids for one in seeded]


def run(fields: str, num_seeds: int, num_compared: int, **settings: Any) -> tuple[PValues, int, int]:
    """The p-values, how many of the first `num_compared` seeds differ from the slow twin, and the nodes accepted.

    The drafter proposes the likeliest tokens at the root, below every node.
    """
    law = law_of(fields)
    proposed = np.argsort(-law.sum((0, 2)))[:NUM_PROPOSED].tolist()
    tokens, num_accepted = drawn(PROMPT, params_of(fields), num_seeds, proposed, **settings)
    others = np.any(tokens[:num_compared] != expected_of(fields, num_compared), axis=1)
    return p_values(tokens, law), int(others.sum()), num_accepted


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("fields", FIELDS)
def test_tokens_follow_the_exact_law(fields: str, policy: str, counts: Counts, sized: Sized) -> None:
    num_seeds, num_compared = sized(300, 6000), sized(20, 400)
    found, mismatches, num_accepted = run(fields, num_seeds, num_compared, **POLICIES[policy])
    counts.report(seeds=num_seeds, accepted=num_accepted, compared=num_compared, mismatches=mismatches, p=found)
    assert min(found) > SURE, found
    assert mismatches == 0
    assert (num_accepted > num_seeds / 4) == (policy != "off")


def argmax(logits: Tensor, params: Sequence[SamplingParams], positions: Sequence[int]) -> list[int]:
    """Planted: accept by argmax under sampling."""
    return logits.argmax(dim=-1).tolist()


def take_likely_children(logits: Tensor, walks: Sequence[Walk], _: Any, emit: Any, fail: Any) -> list[list[int]]:
    """Planted: a child is taken whenever its probability passes 0.5, else the token is drawn."""
    accepted: list[list[int]] = [[] for _ in walks]
    for index, walk in enumerate(walks):
        node: int | None = ROOT
        while node is not None:
            row = logits[walk.first_row + 1 + node]
            likeliest = torch.softmax(row / walk.params.temperature, -1).max(-1)
            token = int(likeliest.indices)
            if likeliest.values <= 0.5 or walk.tree.child(node, token) is None:
                token = sample(row[None], [walk.params], [walk.position + len(accepted[index])])[0]
            node = walk.tree.child(node, token)
            accepted[index] += [] if node is None else [node]
            if emit(index, token):
                break
    return accepted


def reuse_the_roots_numbers(logits: Tensor, walks: Sequence[Walk], _: Any, *rest: Any) -> list[list[int]]:
    """Planted: nodes of depth 1 draw with the root's random numbers again."""
    level = iter(range(1000))

    def shifted(rows: Tensor, params: Sequence[SamplingParams], positions: Sequence[int]) -> list[int]:
        depth = next(level)  # nobody's logits are processed here, so every level is drawn in one call
        return sample(rows, params, [position - (depth == 1) for position in positions])

    return accept(logits, walks, shifted, *rest)


@pytest.mark.parametrize("rule", [argmax, take_likely_children, reuse_the_roots_numbers])
def test_planted_wrong_rules_break_the_law_and_the_tokens(
    rule: Any, counts: Counts, sized: Sized, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"policy": "static"}
    if rule is argmax:
        settings["sampler"] = rule
    else:
        monkeypatch.setattr(drawing_module, "accept", rule)
    found, mismatches, _ = run("temperature 1", sized(400, 2000), 40, **settings)
    counts.report(compared=40, mismatches=mismatches, p=found)
    assert mismatches > 0
    assert found.pair < IMPOSSIBLE, found
    if rule is reuse_the_roots_numbers:
        # The root's token keeps its law, so a test of it alone would miss this rule: the node's hangs on it wrongly.
        assert found.root > SURE, found
