"""How good drafts were: loops against a slow twin, and hand-made steps whose answers are known."""

import math
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.acceptance import Acceptance, best_ranked
from benchmarks.loops import LoopDetector
from benchmarks.reliability import Reliability
from echo_sched.types import FinishReason, NodeReading, Request, SamplingParams, StepRecord, TokenEvent
from tests.records import step_record

Node = tuple[int, float, bool]  # (depth, path probability, accepted)


def node(request_id: str, depth: int, probability: float, accepted: bool) -> NodeReading:
    return NodeReading(0, request_id, depth, math.log(probability), accepted)


def record(readings: Iterable[NodeReading] = ()) -> StepRecord:
    nodes = tuple(readings)
    return step_record(
        num_verified=len(nodes), num_accepted=sum(reading.accepted for reading in nodes), node_readings=nodes
    )


def event(request_id: str, token_ids: Sequence[int], *, last: bool = False) -> TokenEvent:
    request = Request(request_id, (1,), SamplingParams())
    return TokenEvent(request, tuple(token_ids), "", FinishReason("length") if last else None)


# ---- loops ----


def in_loops(tokens: Sequence[int]) -> list[bool]:
    detector = LoopDetector()
    return [detector.push(token) for token in tokens]


def in_loops_slowly(tokens: Sequence[int]) -> list[bool]:
    """The definition, word for word: count the 8-gram that ends at each token among all that ended so far."""
    answers = []
    for end in range(1, len(tokens) + 1):
        grams = [tuple(tokens[stop - 8 : stop]) for stop in range(8, end + 1)]
        answers.append(bool(grams) and grams.count(grams[-1]) >= 3)
    return answers


REPEATED = st.builds(
    lambda before, unit, times, after: [*before, *unit * times, *after],
    st.lists(st.integers(0, 3), max_size=6),
    st.lists(st.integers(0, 3), min_size=1, max_size=10),
    st.integers(1, 6),
    st.lists(st.integers(0, 3), max_size=6),
)


@given(st.one_of(REPEATED, st.lists(st.integers(0, 1), max_size=80)))
def test_loops_are_found_as_defined(tokens: list[int]) -> None:
    assert in_loops(tokens) == in_loops_slowly(tokens)


def test_a_loop_begins_where_eight_tokens_come_back_for_the_second_time() -> None:
    line = list(range(10))
    assert in_loops([*line * 2, *line]) == [False] * 27 + [True] * 3
    assert in_loops([*line * 2, 99, *line]) == [False] * 28 + [True] * 3
    assert in_loops([7] * 12) == [False] * 9 + [True] * 3  # occurrences overlap
    assert not any(in_loops([*range(7), 50] * 2 + [*range(7), 51] * 2))


# ---- acceptance ----


def two_requests() -> Acceptance:
    acceptance = Acceptance()
    acceptance.take(record(), [event("a", [1]), event("b", [2])])
    tree = [node("a", 1, 0.5, True), node("a", 1, 0.3, False), node("a", 2, 0.4, True), node("a", 3, 0.2, False)]
    acceptance.take(record(tree), [event("a", [3, 4, 5]), event("b", [6])])
    trees = [node("a", 1, 0.6, False), node("b", 1, 0.9, True), node("a", 2, 0.1, False)]
    acceptance.take(record(trees), [event("a", [7], last=True), event("b", [8, 9], last=True)])
    return acceptance


def test_acceptance_by_depth() -> None:
    summary = two_requests().summary()
    assert summary["num_verify_steps"] == 4
    assert (
        summary["length"] == summary["length_outside_loops"] == (3 + 1 + 1 + 2) / 4
    )  # first tokens are not among them
    assert summary["by_depth"] == {
        "1": {
            "num_with_node": 3,
            "num_reached": 2,
            "share_reached": 2 / 4,
            "num_tried": 3,
            "conditional_share": pytest.approx(2 / 3),
        },
        "2": {"num_with_node": 2, "num_reached": 1, "share_reached": 1 / 4, "num_tried": 1, "conditional_share": 1.0},
        "3": {"num_with_node": 1, "num_reached": 0, "share_reached": 0.0, "num_tried": 1, "conditional_share": 0.0},
    }
    reliability = summary["reliability"]
    assert (reliability["nodes"]["all"]["num_nodes"], reliability["confidence"]["all"]["num_nodes"]) == (7, 6)
    assert reliability["confidence"]["1"]["num_nodes"] == 3


def test_a_depth_that_no_path_could_reach_has_no_conditional_share() -> None:
    acceptance = Acceptance()
    acceptance.take(record(), [event("a", [1])])
    acceptance.take(record([node("a", 1, 0.5, False), node("a", 2, 0.4, False)]), [event("a", [2], last=True)])
    at = acceptance.summary()["by_depth"]["2"]
    assert (at["num_with_node"], at["num_tried"], at["conditional_share"]) == (1, 0, None)


def test_steps_with_tokens_inside_loops_are_left_out() -> None:
    acceptance = Acceptance()
    acceptance.take(record(), [event("a", [5]), event("b", [1])])
    for others in ([2], [3], [4], [5]):
        acceptance.take(record(), [event("a", [5, 5]), event("b", others)])
    acceptance.take(record(), [event("a", [5, 5])])  # output tokens 10 and 11: the tenth is the first inside a loop
    acceptance.take(record(), [event("a", [5, 5, 5], last=True), event("b", [5], last=True)])
    summary = acceptance.summary()
    assert (summary["num_verify_steps"], summary["length"]) == (11, pytest.approx((4 * 2 + 2 + 3 + 5) / 11))
    assert summary["num_verify_steps_outside_loops"] == 9
    assert summary["length_outside_loops"] == pytest.approx((4 * 2 + 5) / 9)
    assert summary["num_tokens_in_loops"] == 5 and summary["share_in_loops"] == pytest.approx(5 / 20)


def test_a_request_that_comes_again_begins_again() -> None:
    acceptance = Acceptance()
    for _ in range(2):
        acceptance.take(record(), [event("a", [5] * 9)])
        acceptance.take(record(), [event("a", [6], last=True)])
    summary = acceptance.summary()
    assert (summary["num_verify_steps"], summary["length"], summary["num_tokens_in_loops"]) == (2, 1.0, 0)


def test_of_nothing_there_is_no_share() -> None:
    summary = Acceptance().summary()
    assert summary["length"] is summary["length_outside_loops"] is summary["share_in_loops"] is None
    assert summary["by_depth"] == {}
    assert summary["reliability"]["nodes"] == {
        "all": {
            "num_nodes": 0,
            "expected_calibration_error": None,
            "count": [0] * 10,
            "mean_probability": [None] * 10,
            "share_accepted": [None] * 10,
        }
    }


# ---- reliability ----

READINGS = [
    node("a", 1, 0.05, False),
    node("a", 1, 0.14, True),
    node("b", 1, 0.16, False),
    node("b", 1, 1.0, True),
    node("a", 2, 0.95, False),
]


def test_bins_and_the_calibration_error() -> None:
    reliability = Reliability()
    reliability.add(READINGS)
    tables = reliability.summary()
    assert list(tables) == ["all", "1", "2"]
    assert tables["all"]["count"] == [1, 2, 0, 0, 0, 0, 0, 0, 0, 2]
    assert tables["all"]["mean_probability"][:3] == [pytest.approx(0.05), pytest.approx(0.15), None]
    assert tables["all"]["share_accepted"] == [0.0, 0.5, *[None] * 7, 0.5]
    error = (1 * 0.05 + 2 * abs(0.5 - 0.15) + 2 * abs(0.5 - 0.975)) / 5
    assert tables["all"]["expected_calibration_error"] == pytest.approx(error)
    assert tables["1"]["expected_calibration_error"] == pytest.approx((0.05 + 2 * 0.35 + 0.0) / 4)
    assert tables["2"]["expected_calibration_error"] == pytest.approx(0.95)


def test_steps_may_come_in_any_portions() -> None:
    whole, parts = Reliability(), Reliability()
    whole.add(READINGS)
    for reading in READINGS:
        parts.add([reading])
        parts.add([])
    assert parts.summary() == whole.summary()


def test_the_best_ranked_node_of_each_request_and_depth() -> None:
    rivals = [node("a", 1, 0.3, True), node("a", 1, 0.5, False), node("b", 1, 0.2, True), node("b", 1, 0.2, False)]
    deeper = [node("a", 2, 0.1, False)]
    assert best_ranked([*rivals, *deeper]) == [rivals[1], rivals[2], *deeper]
