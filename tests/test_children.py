"""Coupled drafting: offers follow the race that will choose the token, and greedy requests know nothing of it."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from echo_sched.engine.draft.children import Draw, best_children, offer_children
from echo_sched.engine.sampling import sample
from echo_sched.tree import ROOT, DraftTree, FloatArray, IntArray
from echo_sched.types import Request, SamplingParams

NUM_ROWS, NUM_TOKENS = 600, 100
IDS = torch.arange(NUM_TOKENS) * 3  # the target's ids of the draft tokens
GREEDY = SamplingParams(temperature=0.0)


def drafted(seed: int = 0) -> torch.Tensor:
    return torch.randn(NUM_ROWS, NUM_TOKENS, generator=torch.Generator().manual_seed(seed)) * 2.0


def target_of(logits: torch.Tensor) -> torch.Tensor:
    """What a target may think where the draft head thinks this: near it, over more tokens."""
    rows = torch.full((len(logits), 3 * NUM_TOKENS), -torch.inf)
    rows[:, IDS] = logits + drafted(seed=1)[: len(logits)] * 0.3
    return rows


def draws_of(params: SamplingParams) -> list[Draw]:
    return [Draw(SamplingParams(**(vars(params) | {"seed": row})), 7 * row) for row in range(NUM_ROWS)]


def offered(params: SamplingParams, max_children: int = 4, *, coupled: bool = True) -> tuple[IntArray, FloatArray]:
    return best_children(drafted(), IDS, draws_of(params), max_children, coupled=coupled)


def drawn(params: SamplingParams) -> list[int]:
    draws = draws_of(params)
    return sample(target_of(drafted()), [draw.params for draw in draws], [draw.position for draw in draws])


def num_first(tokens: IntArray, emitted: Sequence[int]) -> int:
    return int((tokens[:, 0] == emitted).sum())


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
def test_offers_follow_the_race(temperature: float) -> None:
    params = SamplingParams(temperature=temperature)
    (tokens, _), (plain, _), emitted = offered(params), offered(params, coupled=False), drawn(params)
    assert num_first(tokens, emitted) > 1.2 * num_first(plain, emitted)
    assert (tokens == np.array(emitted)[:, None]).sum() > 1.05 * (plain == np.array(emitted)[:, None]).sum()


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_a_chance_is_about_the_chance_of_agreement(temperature: float) -> None:
    """The made-up target is nearer to q than a real one, so more agrees than was promised."""
    params = SamplingParams(temperature=temperature)
    tokens, logps = offered(params)
    agreed, chances = tokens == np.array(drawn(params))[:, None], np.exp(logps)
    likely = chances > 0.3
    assert chances.sum() < 1.1 * agreed.sum()
    assert agreed[likely].mean() > 3.0 * agreed[~likely].mean()


@pytest.mark.parametrize(("params", "coupled"), [(GREEDY, True), (SamplingParams(), False)])
def test_without_a_race_chances_are_the_drafters(params: SamplingParams, coupled: bool) -> None:
    tokens, logps = offered(params, coupled=coupled)
    best = drafted().log_softmax(-1).topk(4)
    assert (tokens == IDS[best.indices].numpy()).all()
    assert (logps == best.values.double().numpy()).all()


def test_neighbours_change_nothing() -> None:
    kinds = [GREEDY, SamplingParams(), SamplingParams(temperature=0.5, top_k=5, top_p=0.8), SamplingParams(min_p=0.2)]
    draws = [Draw(SamplingParams(**(vars(kinds[row % 4]) | {"seed": row})), row) for row in range(8)]
    logits = drafted()[:8]
    tokens, logps = best_children(logits, IDS, draws, 4, coupled=True)
    for row, draw in enumerate(draws):
        alone = best_children(logits[row : row + 1], IDS, [draw], 4, coupled=True)
        assert (alone[0][0] == tokens[row]).all() and (alone[1][0] == logps[row]).all()


def test_siblings_are_distinct_ordered_and_share_a_whole() -> None:
    for temperature in (0.1, 1.0, 1e6):
        tokens, logps = offered(SamplingParams(temperature=temperature), NUM_TOKENS)
        assert all(len(set(row)) == NUM_TOKENS for row in tokens.tolist())
        assert np.isfinite(logps).all() and (logps <= 0.0).all() and (np.diff(logps) <= 0.0).all()
        assert (np.exp(logps).sum(axis=1) < 1.0 + 1e-6).all()


def test_who_is_alone_in_the_support_need_not_run() -> None:
    """top_k 1 is greedy, whatever the random numbers say."""
    tokens, _ = offered(SamplingParams(top_k=1))
    assert (tokens[:, 0] == IDS[drafted().argmax(-1)].numpy()).all()


def test_a_node_races_at_its_childrens_position() -> None:
    request = Request("r", (1, 2, 3), SamplingParams(seed=5), output_ids=[4])
    tree = DraftTree()
    node = tree.add(tree.add(ROOT, 7, -0.5), 8, -0.75)
    logits = drafted()[:2]
    offers = offer_children([request], [tree], [(0, ROOT), (0, node)], logits, IDS, 3, coupled=True)
    draws = [Draw(request.params, 4), Draw(request.params, 6)]  # what follows four tokens, and two more
    tokens, logps = best_children(logits, IDS, draws, 3, coupled=True)
    assert offers.token.tolist() == tokens.reshape(-1).tolist()
    assert offers.path_logp.tolist() == (np.array([[0.0], [-0.75]]) + logps).reshape(-1).tolist()
    assert offers.parent.tolist() == [ROOT] * 3 + [node] * 3 and set(offers.request.tolist()) == {0}
