"""Random plans, with every ablation, price and fairness rule, for the allocation's property tests."""

import math
import random
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from echo_sched.scheduler.acceptance import Acceptance, AcceptanceCurve
from echo_sched.scheduler.fairness import Fairness
from echo_sched.scheduler.order import even_shares
from echo_sched.scheduler.plan import Plan
from echo_sched.scheduler.price import Price

# Thresholds that no product of the scripted probabilities touches, and 1.0, which certainty meets exactly.
THRESHOLDS = (0.0, 0.07, 0.21, 0.45, 0.77, 1.0)


@st.composite
def prices(draw: st.DrawFn, k_max: int, num_requests: int, max_depth: int) -> Price:
    """A cost curve with steps. Nothing ties: the numbers are all odd."""
    chance = random.Random(draw(st.integers(0, 1000)))
    rises = [chance.choice((0.0, 0.0, 0.01, 0.1, 0.5)) * chance.uniform(0.9, 1.1) for _ in range(k_max)]
    return Price(
        base_tokens=float(num_requests),
        verify_seconds=np.cumsum([chance.uniform(0.5, 1.5), *rises]),
        prompt_seconds=chance.choice((0.0, 2.0)),
        start_seconds=chance.choice((0.0, 0.1)),
        level_seconds=np.cumsum([chance.choice((0.0, 0.03, 0.3)) * chance.uniform(0.9, 1.1) for _ in range(4)]),
        continuation=np.array([chance.uniform(0.3, 1.0) for _ in range(max_depth)]),
        max_seconds=chance.choice((math.inf, math.inf, 1.7, 1.1)),
    )


@st.composite
def acceptances(draw: st.DrawFn, num_requests: int, max_depth: int) -> Acceptance:
    """Chances as they come, bent by a curve, and other for each request."""
    chance = random.Random(draw(st.integers(0, 1000)))
    points = sorted(chance.uniform(0.0, 1.0) for _ in range(3))
    bent = AcceptanceCurve(draw(st.integers(1, 3)), 9, (0.0, 0.3, 0.6, 1.0), (0.0, *points))
    found = Acceptance((bent,) if draw(st.booleans()) else ())
    log_odds = np.array([[chance.uniform(-2.0, 2.0) for _ in range(max_depth)] for _ in range(num_requests)])
    return replace(found, log_odds=log_odds) if draw(st.booleans()) else found


@st.composite
def fair_shares(draw: st.DrawFn, k_max: int, num_requests: int) -> Fairness:
    """Floors, latency targets and priorities, alone and together."""
    chance = random.Random(draw(st.integers(0, 1000)))
    return Fairness.of(
        num_requests,
        k_max,
        floor=draw(st.integers(0, 3)),
        weight=np.array([chance.choice((1.0, 1.0, 0.5, 2.0, 3.1)) for _ in range(num_requests)]),
        need=np.array([chance.choice((0.0, 0.0, 0.37, 1.13, 2.71)) for _ in range(num_requests)]),
    )


@st.composite
def steps(draw: st.DrawFn) -> tuple[Plan, list[int], int]:
    """(plan, depth caps, seed of the scripted children): every ablation, alone and combined."""
    max_depth = draw(st.integers(1, 5))
    caps = draw(st.lists(st.integers(0, 6), min_size=1, max_size=5))
    k_max = draw(st.integers(0, 30))

    def by_depth(values: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
        return st.tuples(*[values] * max_depth)

    shares = draw(st.sampled_from(("free", "even", "cut")))
    rerank = draw(st.booleans())
    verify = draw(st.sampled_from((True, True, True, False)))
    plan = Plan(
        k_max=k_max,
        max_depth=max_depth,
        target_depth=draw(st.integers(1, max_depth)),
        widths=draw(by_depth(st.integers(1, 5))),
        thresholds=draw(by_depth(st.sampled_from((None, None, *THRESHOLDS)))),
        children=draw(st.none() | by_depth(st.integers(1, 3))),
        truncation_rates=draw(st.none() | by_depth(st.sampled_from((0.0, 0.3, 0.7, 1.0)))),
        random_key=(draw(st.integers(0, 3)), draw(st.integers(0, 100))),
        gate_scope=draw(st.sampled_from(("request", "branch"))),
        shares={
            "free": None,
            "even": tuple(even_shares(k_max, len(caps)).tolist()),
            "cut": (k_max // len(caps),) * len(caps),
        }[shares],
        widen=verify and not rerank and draw(st.booleans()),
        widen_scope=draw(st.sampled_from(("all", "truncation"))),
        rerank=verify and rerank,
        price=draw(st.none() | prices(k_max, len(caps), max_depth)),
        acceptance=draw(acceptances(len(caps), max_depth)),
        fairness=draw(st.none() | fair_shares(k_max, len(caps))) if shares == "free" else None,
        verify=verify,
    )
    return plan, caps, draw(st.integers(0, 10_000))
