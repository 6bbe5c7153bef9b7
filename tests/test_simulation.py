"""The simulator against paper, against itself, and against the real engine on a tiny model."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from calibration.pool import Pool, labelled
from calibration.record import offer_trace, record, tracing
from calibration.simulate.clairvoyant import accepted_per_step, draw_steps, share, yardsticks
from calibration.simulate.figures import figures, jain
from calibration.simulate.recorded import RecordedOffers
from calibration.simulate.simulated import SimulatedRun
from calibration.simulate.simulation import Simulation
from calibration.trace import OfferTrace, TracedRequest, TraceHeader
from echo_sched.arms import parse_arms
from echo_sched.config import EngineConfig
from echo_sched.scheduler.cost import CostTable, DraftingCost, Overhead
from echo_sched.scheduler.policy import PolicySettings, make_policy
from echo_sched.scheduler.profile import Identity
from echo_sched.scheduler.starting_values import built_in_profile
from echo_sched.tree import ROOT
from echo_sched.types import Request, SamplingParams, StepRecord
from tests.fakes import ScriptedDrafter
from tests.loops import STAIRS, run, tiny_loop, tiny_target
from tests.tiny_models import VOCAB_SIZE, random_prompt

PLAIN = CostTable((1, 2, 3, 4, 8), (0,), ((1.0,), (2.0,), (3.0,), (4.0,), (8.0,)), DraftingCost.constant(0.5), {})
ANSWERS = ((5, 6, 7, 8, 9), (1, 2, 3), (4,))  # of three requests with prompts of 2, 1 and 1 tokens


def chain(answer: tuple[int, ...], position: int, max_depth: int, right: int) -> Pool:
    """A chain of sure tokens and beside each a poor one; the first `right` of the chain are the answer's."""
    deepest = min(max_depth, len(answer) - position - 1)
    columns = [
        (depth, depth - 2 if depth > 1 else ROOT, token, logp, node)
        for depth in range(1, deepest + 1)
        for token, logp, node in (
            (answer[position + depth - 1] if depth <= right else 90, -0.1 * depth, depth - 1),
            (91, -5.0 - 0.1 * depth, -2),
        )
    ]
    table = np.array(columns, np.float64).reshape(-1, 5)
    depth, parent, token, node = (table[:, index].astype(np.int64) for index in (0, 1, 2, 4))
    return labelled(depth, parent, token, table[:, 3], node, answer[position:])


@pytest.fixture
def by_hand() -> OfferTrace:
    """Drafts are right throughout for the first request, never for the second; the third is one token long."""
    requests = tuple(
        TracedRequest(prompt, len(answer), len(answer)) for prompt, answer in zip((2, 1, 1), ANSWERS, strict=True)
    )
    pools = tuple(
        tuple(chain(answer, position, 2, right) for position in range(1, len(answer)))
        for answer, right in zip(ANSWERS, (2, 0, 0), strict=True)
    )
    header = TraceHeader(Identity("tiny", None), Identity("ngram", None), 2, 2, 0.0, (99,), requests, {})
    return OfferTrace(header, pools)


def simulate(
    trace: OfferTrace, cost: CostTable = PLAIN, concurrency: int = 1, num_requests: int = 3, **settings: Any
) -> SimulatedRun:
    config = EngineConfig(**({"max_depth": trace.header.max_depth, "branching": trace.header.branching} | settings))
    profile = replace(built_in_profile("ngram"), cost=cost)
    return Simulation(
        RecordedOffers(trace),
        trace.header.requests,
        make_policy(PolicySettings.of(config), profile),
        cost,
        concurrency=concurrency,
        num_requests=num_requests,
        chunk_tokens=7,
        max_children=config.branching,
    ).run()


def test_plain_decoding_of_three_requests_is_what_paper_says(by_hand: OfferTrace) -> None:
    """Alone: prompt of 2 in 2 s and 4 tokens at 1 s; prompt of 1 and 2 tokens; prompt of 1. 9 tokens in 10 s."""
    found = figures(simulate(by_hand, policy="off"))
    assert found["output_throughput"] == pytest.approx(9 / 10)
    assert found["request_seconds"]["p50"] == pytest.approx(3.0)
    assert (found["acceptance_length"], found["draft_utilisation"], found["share_k_max_zero"]) == (1.0, None, 1.0)
    assert found["fairness"] == pytest.approx((5 / 6 + 1 + 1) ** 2 / (3 * ((5 / 6) ** 2 + 2)))


def test_drafting_of_three_requests_is_what_paper_says(by_hand: OfferTrace) -> None:
    """goodput without a price and K_max 2 buys chains of two.

    First request: prompt 2 s; root and 2 nodes 3 s + 2 levels 1 s give 3 tokens, then 1 token is left, whose cap is 0:
    1 s. Second: prompt 1 s; a tree one deep (2 nodes: right depth is capped to 1): 3 + 0.5 s for the bonus, then 1 s.
    Third: 1 s.
    """
    found = simulate(by_hand, policy="goodput", price="off", k_max=2)
    assert [step.seconds for step in found.steps] == pytest.approx([2.0, 4.0, 1.0, 1.0, 3.5, 1.0, 1.0])
    steps = [(step.num_verified, step.num_accepted, step.num_emitted) for step in found.steps]
    assert steps == [(0, 0, 1), (2, 2, 3), (0, 0, 1), (0, 0, 1), (2, 0, 1), (0, 0, 1), (0, 0, 1)]
    assert figures(found)["output_throughput"] == pytest.approx(9 / 13.5)
    assert figures(found)["draft_utilisation"] == 0.5


def test_latencies_of_three_requests_are_what_paper_says(by_hand: OfferTrace) -> None:
    """Plainly and alone: prompts of 2, 1, 1 s, then a token a second; the third has no second token to have a pace."""
    found = figures(simulate(by_hand, policy="off"))["latency_ms"]
    assert found["ttft"]["p50"] == pytest.approx(1000.0) and found["ttft"]["p99"] > 1900.0
    assert found["tpot"] == found["itl"] == {"p50": 1000.0, "p95": 1000.0, "p99": 1000.0}
    drafted = figures(simulate(by_hand, policy="goodput", price="off", k_max=2))["latency_ms"]
    assert drafted["itl"]["p99"] > 3900.0  # 3 tokens come together after 4 s


def test_the_overhead_of_a_step_comes_on_top(by_hand: OfferTrace) -> None:
    """As plainly above, and 10 s per step and 1 per request."""
    dear = replace(PLAIN, overhead=Overhead(10.0, 1.0))
    found = simulate(by_hand, dear, policy="off", concurrency=2)
    assert [step.seconds for step in found.steps] == [3.0 + 12, 2.0 + 12, 2.0 + 12, 2.0 + 12, 1.0 + 11]


def test_two_at_once_share_steps_and_the_next_comes_when_one_ends(by_hand: OfferTrace) -> None:
    """Both prompts in one step (3 tokens), then B = 2 twice; the third request's prompt beside the first's root."""
    found = simulate(by_hand, policy="off", concurrency=2)
    assert [step.seconds for step in found.steps] == [3.0, 2.0, 2.0, 2.0, 1.0]
    assert [step.num_prompt_tokens for step in found.steps] == [3, 0, 0, 1, 0]
    assert [round(served.seconds) for served in found.served] == [7, 2, 10]


def test_requests_are_repeated_in_turn(by_hand: OfferTrace) -> None:
    found = simulate(by_hand, policy="off", concurrency=5, num_requests=8)
    assert sorted(served.num_output_tokens for served in found.served) == [1, 1, 3, 3, 3, 5, 5, 5]


def test_clairvoyance_spends_everything_on_what_is_right(by_hand: OfferTrace) -> None:
    recorded = RecordedOffers(by_hand)
    steps = [np.array([0, 4]), np.array([1, 5])]  # pools 0 to 3: first request; 4 and 5: second
    assert recorded.num_accepted.tolist() == [2, 2, 1, 0, 0, 0]
    rules = yardsticks(recorded, steps, 2, seed=0)
    assert (rules["clairvoyant"], rules["equal_split"]) == (2.0, 1.0)
    assert yardsticks(recorded, steps, 1, seed=0)["clairvoyant"] == 1.0
    settings = PolicySettings(policy="goodput", k_max=2, max_depth=2, price="off")
    found = accepted_per_step(recorded, [np.array([0, 4])], make_policy(settings, built_in_profile("ngram")), 2)
    assert found == 1.0  # equally sure of both: depth 1 of each
    assert share(1.5, rules) == 0.5
    assert share(1.0, {"equal_split": 2.0, "clairvoyant": 2.0}) is None
    assert 0.0 <= rules["random"] <= 2.0


def test_random_takes_whole_pools_where_there_is_room_for_all(by_hand: OfferTrace) -> None:
    recorded = RecordedOffers(by_hand)
    assert yardsticks(recorded, [np.array([0, 1, 2])], 100, seed=1)["random"] == 5.0
    few = [yardsticks(recorded, draw_steps(recorded, 6, seed), 3, seed)["random"] for seed in (1, 1, 2)]
    assert few[0] == few[1] > 0.0


def test_jain_is_one_for_equals_and_falls_to_one_in_n() -> None:
    assert jain([2.0, 2.0, 2.0]) == pytest.approx(1.0)
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)


# ---- against the real engine ----


def answers(count: int, max_new_tokens: int = 20) -> list[Request]:
    return [
        Request(f"r{i}", random_prompt((5, 23, 1, 12)[i % 4], seed=i), SamplingParams(max_new_tokens, 0.9, seed=i))
        for i in range(count)
    ]


def up_to(stop: int, tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(stop) + 1] if stop in tokens else list(tokens)


@pytest.fixture(scope="module")
def engine_and_trace() -> tuple[Any, ScriptedDrafter, OfferTrace]:
    target = tiny_target()
    plain = answers(7)
    run(tiny_loop(target, ScriptedDrafter({}, [0.0], VOCAB_SIZE), policy="off"), plain)
    stop = plain[0].output_ids[9]
    target.facts = target.facts._replace(eos_ids=frozenset({stop}))
    truth = {request.request_id: up_to(stop, request.output_ids) for request in plain}
    drafter = ScriptedDrafter(truth, [0.85, 0.8, 0.7], VOCAB_SIZE, signal=True)
    loop = tiny_loop(target, drafter, max_depth=5, branching=3)
    requests = answers(7)
    pools = record(tracing(loop), requests, concurrency=3, report=lambda done, total: None)
    trace = offer_trace(loop, requests, pools, {})
    assert [request.output_ids for request in requests] == list(truth.values())
    assert any(len(answer) < 20 for answer in truth.values()) and trace.header.stop_ids == (stop,)
    return target, drafter, trace


def in_numbers(step: Any) -> tuple[int, ...]:
    """What a real step and a simulated one have in common."""
    names = ("k_max", "num_decoding", "num_prompt_tokens", "num_levels", "num_verified", "num_accepted", "num_emitted")
    return tuple(getattr(step, name) for name in names)


@pytest.mark.parametrize(
    "arm",
    [
        "off",
        "goodput",
        "goodput:price=off:k_max=10",
        "goodput:k_max_rule=auto",
        "echo",
        "echo:price=off:widen=off:k_max=12",
        "echo:price=off:gate=random",
        "dynamic:price=off",
        "static:price=off:max_depth=2",
    ],
)
def test_the_simulator_takes_the_real_engines_steps(
    arm: str, engine_and_trace: tuple[Any, ScriptedDrafter, OfferTrace]
) -> None:
    """Same policy, cost table and arrival order: every step has the same plan, nodes and tokens."""
    target, drafter, trace = engine_and_trace
    shape = EngineConfig(
        max_depth=5,
        branching=3,
        drafter="ngram",
        k_max=24,
        max_batch_size=4,
        chunk_tokens=7,
        explore=0,
        live_costs="off",
    )  # the simulator drives policies alone, and they never explore
    config = parse_arms(arm, shape)[-1].config
    loop = tiny_loop(target, drafter, cost=STAIRS, **config.model_dump())
    for request in answers(7):
        loop.add(request)
    real: list[StepRecord] = []
    while loop.has_work:
        loop.step()
        assert loop.last_record is not None
        real.append(loop.last_record)
    settings = {name: getattr(config, name) for name in PolicySettings.__dataclass_fields__}
    found = simulate(trace, STAIRS, 4, 7, **settings)
    assert sum(step.num_cut for step in found.steps) == 0, "the beam was wide enough"
    assert [in_numbers(step) for step in found.steps] == [in_numbers(step) for step in real]
    assert arm == "off" or sum(step.num_accepted for step in found.steps) > 10


def test_the_same_arguments_give_the_same_run(engine_and_trace: tuple[Any, ScriptedDrafter, OfferTrace]) -> None:
    trace = engine_and_trace[2]
    first, second = (simulate(trace, STAIRS, 3, 9, policy="echo", gate="random", price="off") for _ in range(2))
    assert first == second
    other = simulate(trace, STAIRS, 3, 9, policy="echo", gate="random", price="off", seed=1)
    assert other.duration != first.duration


def test_a_right_path_that_the_trace_left_is_cut_and_counted(by_hand: OfferTrace) -> None:
    columns = (np.array([1, 1]), np.array([ROOT, ROOT]), np.array([90, 6]), np.array([-0.1, -0.3]), np.array([0, -2]))
    first = labelled(*columns, ANSWERS[0][1:])
    trace = by_hand._replace(pools=((first, *by_hand.pools[0][1:]), *by_hand.pools[1:]))
    found = simulate(trace, policy="goodput", price="off", k_max=2)
    assert [step.num_cut for step in found.steps].count(1) == 1 == sum(step.num_cut for step in found.steps)
    assert figures(found)["share_cut"] == pytest.approx(1 / sum(step.num_decoding for step in found.steps))
    assert not any(step.num_cut for step in simulate(by_hand, policy="goodput", price="off", k_max=2).steps)
