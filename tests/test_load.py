"""What a step is planned on: priorities, targets and time reach policies as plain numbers, and change no token."""

from dataclasses import replace

import pytest

from echo_sched.errors import RequestError
from echo_sched.loop.load import LoadMeter
from echo_sched.scheduler.cost import CostTable, DraftingCost
from echo_sched.scheduler.economy import HOLD_STEPS
from echo_sched.scheduler.gains import FIRST_TREES
from echo_sched.scheduler.plan import Feedback, Load
from echo_sched.scheduler.policy import PolicySettings, make_policy
from echo_sched.scheduler.starting_values import built_in_profile
from echo_sched.types import Request, SamplingParams, ServiceParams
from tests.allocation_twin import drive
from tests.loops import STAIRS, assert_equal_to_reference, mixed_requests, scripted, tiny_loop, tiny_target

GREEDY = SamplingParams(max_new_tokens=20, temperature=0.0)


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def decoding(name: str, num_tokens: int, **service: float) -> Request:
    request = Request(name, (1, 2), GREEDY, [5] * num_tokens, service=ServiceParams(**service))
    request.num_computed = request.num_tokens - 1
    return request


def test_nobody_asks_for_anything_and_the_load_says_nothing() -> None:
    load = LoadMeter(FakeClock()).load(3, [decoding("a", 1), decoding("b", 3)], [])
    assert load == Load(2, 3, 0, 2 + 4)
    assert load.need is None
    assert load.fairness(0, 8) is None


def test_priorities_and_paces_are_per_request() -> None:
    clock = FakeClock()
    meter = LoadMeter(clock)
    plain, urgent = decoding("a", 1), decoding("b", 1, priority=2.0, tpot_slo_ms=500.0)
    meter.load(0, [plain, urgent], [])
    clock.now += 0.4  # a step takes 0.4 s, and gives both their first token
    meter.note([plain, urgent])
    clock.now += 1.0
    urgent.output_ids += [5]
    load = meter.load(1, [plain, urgent], [])
    assert load.priority is not None and load.priority.tolist() == [1.0, 2.0]
    assert load.step_seconds == pytest.approx(0.4)
    assert load.pace is not None and load.need is not None
    assert load.pace.elapsed == pytest.approx([1.0, 1.0])
    # after the step 1.4 s will have gone: 2.8 tokens are due, one is there, one the root brings
    assert load.need == pytest.approx([0.0, 0.8])


def test_a_request_without_speculation_has_no_pace() -> None:
    plain = replace(decoding("a", 1, tpot_slo_ms=1.0), params=replace(GREEDY, speculation=False))
    assert LoadMeter(FakeClock()).load(0, [plain], []).pace is None


@pytest.mark.parametrize(("field", "value"), [("priority", 0.0), ("priority", float("nan")), ("tpot_slo_ms", 0.0)])
def test_service_fields_out_of_range_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(RequestError) as caught:
        ServiceParams(**{field: value})
    assert caught.value.param == field


def test_a_step_with_somebody_in_need_may_spend_all_of_k_max() -> None:
    """The rate alone has K_max 0: a forward takes as long as it has tokens, so a node costs more than it brings."""
    dear = CostTable(
        tuple(range(1, 20)), (0,), tuple((float(n),) for n in range(1, 20)), DraftingCost.constant(0.1), {}
    )
    policy = make_policy(PolicySettings(k_max=8), replace(built_in_profile("eagle3"), cost=dear))
    known = FIRST_TREES + HOLD_STEPS  # steps until K_max is what drafts are known to be worth
    for step in range(known):
        load = Load(1, step)
        policy.observe(load, Feedback(drive(policy.plan(load), [20], lambda request, path: [(1, 0.5)]).report))
    urgent = decoding("b", 1, tpot_slo_ms=1.0)
    urgent.first_token_at = 99.0
    load = LoadMeter(FakeClock()).load(known, [urgent], [])
    assert policy.plan(load._replace(pace=None)).k_max == 0
    plan = policy.plan(load)
    assert plan.k_max == 8 and plan.fairness is not None
    assert drive(plan, [20], lambda request, path: [(1, 0.5)]).report.num_nodes.tolist() == [4]  # half of K_max


def with_services(count: int) -> list[Request]:
    """As mixed_requests, each wanting something else of the scheduler."""
    services = (ServiceParams(), ServiceParams(4.0), ServiceParams(1.0, 0.01), ServiceParams(0.5, 50.0))
    return [replace(request, service=services[i % 4]) for i, request in enumerate(mixed_requests(count))]


@pytest.mark.parametrize("policy", ["echo", "goodput"])
def test_service_fields_never_change_tokens(policy: str) -> None:
    drafter = scripted("llama", 8, make=with_services)
    loop = tiny_loop(tiny_target(), drafter, policy=policy, node_floor=1, cost=STAIRS)
    assert_equal_to_reference(loop, "llama", 8, make=with_services)
