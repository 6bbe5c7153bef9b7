"""What an accepted token saves where prompts wait at every step: a row, not a step."""

from dataclasses import replace

import numpy as np
import pytest

from echo_sched.engine.draft.ngram import NGramDrafter
from echo_sched.scheduler.cost import CostTable, DraftingCost
from echo_sched.scheduler.crowding import LEAST, MEMORY, Crowding
from echo_sched.scheduler.economy import PROBE_STEPS, Economy
from echo_sched.scheduler.plan import Feedback, Load
from echo_sched.scheduler.policy import PolicySettings, make_policy
from echo_sched.scheduler.starting_values import BUILT_IN_PROFILES
from echo_sched.types import Request, SamplingParams
from tests.allocation_twin import drive
from tests.loops import tiny_loop, tiny_target

# As long for up to 100 rows, then in proportion: 10 roots take 10 s alone, and 1 s beside 490 prompt tokens.
COST = CostTable((1, 100, 1100), (0,), ((10.0,), (10.0,), (110.0,)), DraftingCost.constant(0.01), {})
OPEN, CROWDED = Load(10, 0, 490, 0, num_waiting_tokens=0), Load(10, 0, 490, 0, num_waiting_tokens=1)
LONG = round(5 / MEMORY)  # steps


def after(*loads: Load) -> Crowding:
    crowding = Crowding()
    for load in loads:
        crowding.observe(load, COST)
    return crowding


def test_steps_are_decodings_own_while_some_have_room_for_all_prompts() -> None:
    assert after().own_share == after(*[OPEN] * LONG).own_share == 1.0
    assert after(*[CROWDED, CROWDED, CROWDED, OPEN] * LONG).own_share == 1.0


def test_where_prompts_always_wait_roots_are_worth_what_they_add() -> None:
    assert after(*[CROWDED] * 3 * LONG).own_share == pytest.approx(0.1, abs=1e-3)


def test_roots_that_add_nothing_are_still_worth_something() -> None:
    flat = CostTable((1, 1000), (0,), ((1.0,), (1.0,)), DraftingCost.constant(0.01), {})
    crowding = Crowding()
    for _ in range(100 * LONG):
        crowding.observe(CROWDED, flat)
    assert crowding.own_share == pytest.approx(LEAST)


def test_one_open_spell_ends_it_and_steps_of_nobody_say_nothing() -> None:
    assert after(*[CROWDED] * LONG, *[OPEN] * 3).own_share == 1.0
    assert after(*[CROWDED] * 3 * LONG, *[Load(0, 0, 512, 0)] * LONG).own_share < 0.11


def test_beside_prompts_that_always_wait_nodes_are_bought_that_are_likelier_than_they_are_dear() -> None:
    """A node takes as long as a root there, so that only what is nearly sure could pay; alone it is for nothing."""
    settings = PolicySettings(policy="goodput", k_max=40, live_costs="off", live_acceptance="off")
    bought = {}
    for load in (OPEN, CROWDED):
        policy = make_policy(settings, replace(BUILT_IN_PROFILES["eagle3"], cost=COST))
        nodes = []
        for step in range(LONG + 4 * PROBE_STEPS):
            now = load._replace(step=step)
            report = drive(policy.plan(now), [20] * 10, lambda request, path: [(1, 0.8)]).report
            nodes.append(int(report.num_nodes.sum()))
            policy.observe(now, Feedback(report))
        bought[load] = np.median(nodes[LONG:])
    assert bought[OPEN] > 20 and bought[CROWDED] == 0


def test_the_bound_on_what_drafts_may_add_stays_a_share_of_plain_decoding() -> None:
    settings = PolicySettings(policy="goodput", k_max=40, live_costs="off", max_step_stretch=0.5)
    economy = Economy(settings, replace(BUILT_IN_PROFILES["eagle3"], cost=COST))
    nothing = drive(make_policy(PolicySettings(policy="off"), BUILT_IN_PROFILES["eagle3"]).plan(OPEN), [20] * 10,
                    lambda *_: []).report  # fmt: skip
    for _ in range(LONG):
        economy.observe(CROWDED, Feedback(nothing))
    price = economy.price(CROWDED, 40)
    assert price is not None
    assert price.verify_seconds[0] < 2.0
    assert price.max_seconds - price.verify_seconds[0] == pytest.approx(0.5 * COST.seconds_for(10, 0))
    assert price.verify_seconds[0] + price.prompt_seconds == pytest.approx(COST.seconds_for(500, 0))


def test_the_loop_says_how_many_prompt_tokens_have_to_wait() -> None:
    loop, seen = tiny_loop(tiny_target(), NGramDrafter(), policy="off", chunk_tokens=4, max_batch_size=2), []
    plan = loop.scheduler.plan

    def spying(load: Load):  # type: ignore[no-untyped-def]
        seen.append((load.num_requests, load.num_prompt_tokens, load.num_waiting_tokens))
        return plan(load)

    loop.scheduler.plan = spying  # type: ignore[method-assign]
    for name, length in (("a", 20), ("b", 5), ("waits for a slot", 9)):
        loop.add(Request(name, tuple(range(1, length + 1)), SamplingParams(max_new_tokens=8, temperature=0.0)))
    for _ in range(3):
        loop.step()
    assert seen == [(0, 16, 9), (0, 9, 0), (2, 0, 0)]
