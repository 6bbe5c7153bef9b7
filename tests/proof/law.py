"""Chi-square tests of the tokens of verify steps against the exact law, which is computed by enumeration.

The model has so few tokens that the law of three output tokens can be written out whole: what the reference's final
distribution says after every prefix. The first comes from the prompt's last row; the second is drawn at the root of the
first draft tree, the third at a node of it wherever the second was proposed.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import chisquare
from torch import Tensor

from echo_sched.engine.accept import Sampler
from echo_sched.engine.choice import final_distribution, processed
from echo_sched.engine.sampling import sample
from echo_sched.tree import DraftTree, FloatArray, Frontier, IntArray, Offers
from echo_sched.types import Request, SamplingParams
from tests.loops import EOS_ID, target_of, tiny_loop
from tests.tiny_models import tiny_model

VOCAB_SIZE = 9
NUM_TOKENS = 3
MIN_EXPECTED = 8.0  # cells of fewer expected outcomes are counted as one: chi-square is an approximation for many
BATCH = 16


class ConstantDrafter:
    """Proposes the same tokens below every node, so that any tree the policy likes can grow."""

    name = "constant"
    fingerprint: str | None = None
    aux_layers: tuple[int, ...] = ()

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tokens

    def begin(self, request: Request) -> None: ...

    def observe(self, committed: Sequence[tuple[Request, int]], features: Tensor) -> None: ...

    def extend(self, requests: Sequence[Request]) -> None: ...

    def release(self, request: Request) -> None: ...

    def expand(
        self, requests: Sequence[Request], trees: Sequence[DraftTree], frontier: Frontier, max_children: int
    ) -> Offers:
        tokens = self.tokens[:max_children]
        parent_logp = [trees[i].path_logps[n] if n >= 0 else 0.0 for i, n in zip(*map(list, frontier), strict=True)]
        logps = np.log(0.9 / np.arange(2, len(tokens) + 2))
        return Offers(
            np.repeat(frontier.request, len(tokens)),
            np.repeat(frontier.node, len(tokens)),
            np.tile(np.array(tokens, np.int64), frontier.node.size),
            (np.array(parent_logp)[:, None] + logps).ravel(),
        )


def exact_law(prompt: Sequence[int], params: SamplingParams) -> FloatArray:
    """Probability [V, V, V] of the first three output tokens, from the model's logits after every prefix."""
    model = tiny_model("llama", vocab_size=VOCAB_SIZE)
    law = np.ones((VOCAB_SIZE,) * NUM_TOKENS)
    for depth in range(NUM_TOKENS):
        for prefix in np.ndindex(*(VOCAB_SIZE,) * depth):
            with torch.no_grad():
                logits = model(torch.tensor([[*prompt, *prefix]])).logits[0, -1].double().numpy()
            row = processed(logits, params, prompt, list(prefix), (EOS_ID,))
            law[prefix] *= final_distribution(row, params).reshape(-1, *(1,) * (NUM_TOKENS - depth - 1))
    return law


def drawn(
    prompt: Sequence[int],
    params: SamplingParams,
    num_seeds: int,
    proposed: Sequence[int],
    *,
    sampler: Sampler = sample,
    **settings: object,
) -> tuple[IntArray, int]:
    """Output tokens [num_seeds, 3] of seeds 0, 1, 2, ... in full batches, and how many of them were accepted nodes.

    `proposed`: the children of every node, best first.
    """
    target = target_of(tiny_model("llama", vocab_size=VOCAB_SIZE), num_slots=BATCH, max_model_len=64)
    loop = tiny_loop(
        target,
        ConstantDrafter(proposed),
        sampler=sampler,
        **{"max_batch_size": BATCH, "k_max": 150, "max_depth": 2, "chunk_tokens": 64} | settings,
    )
    requests = [
        Request(f"s{seed}", tuple(prompt), SamplingParams(**vars(params) | {"seed": seed})) for seed in range(num_seeds)
    ]
    for request in requests:
        loop.add(request)
    while loop.has_work:
        loop.step()
    num_accepted = sum(request.stats.num_accepted for request in requests)
    return np.array([request.output_ids for request in requests]), num_accepted


class PValues(NamedTuple):
    """Of the prompt's token, of the root's token, of the node's token, and of the last two together."""

    first: float
    root: float
    node: float
    pair: float

    def __str__(self) -> str:
        return " ".join(f"{value:.2g}" for value in self)


def p_values(tokens: IntArray, law: FloatArray) -> PValues:
    seen = np.zeros(law.shape)
    np.add.at(seen, tuple(tokens.T), 1)
    return PValues(*(_p_value(seen.sum(axis), law.sum(axis)) for axis in ((1, 2), (0, 2), (0, 1), (0,))))


def _p_value(seen: FloatArray, law: FloatArray) -> float:
    """0 where something came that cannot come; else the chi-square test's, rare cells taken together."""
    seen, expected = seen.ravel(), law.ravel() * seen.sum()
    if seen[expected == 0.0].any():
        return 0.0
    rare = expected < MIN_EXPECTED
    cells = [(seen[~rare], expected[~rare]), (seen[rare].sum(keepdims=True), expected[rare].sum(keepdims=True))]
    counts, means = (np.concatenate(part) for part in zip(*cells, strict=True))
    return float(chisquare(counts[means > 0.0], means[means > 0.0]).pvalue)
