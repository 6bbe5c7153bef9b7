"""`/admin/scheduler`: settings read and changed while requests run; what cannot be is refused by field."""

import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from echo_sched.arms import LIVE_SETTINGS
from echo_sched.engine.draft.eagle3.opening import open_eagle3
from echo_sched.engine.draft.ngram import NGramDrafter
from echo_sched.errors import RequestError
from echo_sched.loop import DecodeLoop
from tests.loops import mixed_requests, references, scripted, tiny_loop, tiny_target
from tests.server_harness import POISON, FakeLoop, Running, serving, until
from tests.tiny_heads import ORIGINAL, head_tensors, write_head

PATH = "/admin/scheduler"


def ngram_loop(**settings: Any) -> DecodeLoop:
    return tiny_loop(tiny_target(), NGramDrafter(), **settings)


def error_of(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


# -- over HTTP, the engine scripted --


def test_get_shows_settings_state_and_what_the_gate_is_worth() -> None:
    with serving() as server:
        found = server.client.get(PATH).json()
        assert found["k_max"] is None and found["cost_model_error_ratio"] is None
        server.client.post("/generate", json={"text": "a", "sampling_params": {"max_new_tokens": 4}})
        found = server.client.get(PATH).json()
        info = server.client.get("/get_server_info").json()
    assert set(found["settings"]) == set(LIVE_SETTINGS) and found["limits"] == {"k_max": 32}
    assert (found["k_max"], found["thresholds"], found["explored_share"]) == (8, {"4": 0.12}, 0.5)
    assert (
        found["gate"][0]["auc"] == 0.7 and found["gate"][0]["profile_auc_low"] == 0.85 and found["gate"][0]["drifted"]
    )
    assert 1.0 < found["cost_model_error_ratio"] < 2.0
    assert {name: info["scheduler"][name] for name in found} == found


def test_a_change_is_answered_with_the_settings_in_force_and_null_changes_nothing() -> None:
    with serving() as server:
        answer = server.client.post(PATH, json={"policy": "off", "k_max": 4, "gate": None})
        assert answer.status_code == 200
        assert (answer.json()["settings"]["policy"], answer.json()["settings"]["k_max"]) == ("off", 4)
        assert answer.json()["settings"]["gate"] == "sparse"
        assert server.loop.config.k_max == 4
        assert error_of(server.client.post(PATH, json={"k_max": 33}))["param"] == "k_max"


def test_the_route_needs_the_api_key() -> None:
    with serving(api_key="secret") as server:
        for send in (server.client.get, server.client.post):
            assert error_of(send(PATH), 401)["code"] == "invalid_api_key"
        right = {"Authorization": "Bearer secret"}
        assert server.client.post(PATH, json={"k_max": 2}, headers=right).status_code == 200
    assert server.loop.num_changes == 1


def test_a_change_that_breaks_is_a_500_and_the_engine_goes_on() -> None:
    with serving() as server:
        assert error_of(server.client.post(PATH, json={"broken": 1}), 500)["code"] == "internal"
        body = {"text": "a", "sampling_params": {"max_new_tokens": 4}}
        assert server.client.post("/generate", json=body).json()["text"] == "abcd"


def test_a_change_waits_for_the_end_of_the_step_and_is_answered_even_if_that_fails() -> None:
    loop = FakeLoop()
    loop.unblocked.clear()
    answers: list[httpx.Response] = []
    with serving(loop) as server:
        poisoned = {"input_ids": [POISON], "sampling_params": {"max_new_tokens": 4}}
        threads = [
            threading.Thread(target=lambda: answers.append(server.client.post("/generate", json=poisoned))),
            threading.Thread(target=lambda: answers.append(server.client.post(PATH, json={"k_max": 2}))),
        ]
        threads[0].start()
        until(lambda: loop.has_work)
        threads[1].start()
        until(lambda: server.bridge._changes._open)
        assert loop.num_changes == 0 and answers == []
        loop.unblocked.set()
        for thread in threads:
            thread.join()
    assert [answer.status_code for answer in answers] == [500, 500] and loop.num_changes == 0


def test_before_the_model_is_loaded_it_is_unavailable() -> None:
    loaded = threading.Event()

    def slow() -> FakeLoop:
        loaded.wait()
        return FakeLoop()

    with serving(load=slow, wait=False) as server:
        until(lambda: server.client.get("/health").status_code == 200)
        for answer in (server.client.get(PATH), server.client.post(PATH, json={})):
            assert error_of(answer, 503)["code"] == "loading"
        loaded.set()


# -- what a loop makes of it --


@pytest.mark.parametrize(
    ("changes", "param", "message"),
    [
        ({"k_max": 25}, "k_max", "started with --k-max 24"),
        ({"k_max": -1}, "k_max", "greater than or equal to 0"),
        ({"k_max": "8"}, "k_max", "valid integer"),
        ({"policy": "fast"}, "policy", "should be 'off'"),
        ({"explore": 2.0}, "explore", "less than or equal to 1"),
        ({"explore": float("nan")}, "explore", "finite"),
        ({"shapes": "2=1"}, "shapes", "ascend from 1"),
        ({"k_maxx": 3}, "k_maxx", "unknown field 'k_maxx'"),
        ({"model": "other"}, "model", "unknown field 'model'"),
        ({"price": "on"}, "price", "costs were not measured"),
        ({"thresholds": "often"}, "thresholds", "per-depth"),
        ({"thresholds": {"one": 0.5}}, "thresholds", "no depth"),
        ({"thresholds": {"0": 0.5}}, "thresholds", "no depth"),
        ({"thresholds": {"1": 1.5}}, "thresholds", "[0, 1]"),
        ({"thresholds": {"1": True}}, "thresholds", "[0, 1]"),
        ({"thresholds": {"9": 0.5}}, "thresholds", "max_depth is 8"),
        ({"thresholds": {"1": 0.5}, "policy": "goodput"}, "thresholds", "only the policy echo"),
        ({"adapt": "on", "thresholds": "single"}, None, "single"),
    ],
)
def test_what_cannot_be_is_refused_by_field_and_changes_nothing(
    changes: dict[str, Any], param: str | None, message: str
) -> None:
    loop = ngram_loop(price="off")
    before, policy = loop.config, loop.policy
    with pytest.raises(RequestError) as caught:
        loop.reschedule(changes)
    assert caught.value.param == param and message in str(caught.value)
    assert loop.config is before and loop.policy is policy and loop.scheduling.state.num_policy_changes == 0


def test_a_loop_started_without_drafting_says_why_it_cannot_begin() -> None:
    loop = ngram_loop(policy="off")
    with pytest.raises(RequestError, match="started with --policy off") as caught:
        loop.reschedule({"policy": "echo"})
    assert caught.value.param == "policy"
    loop.reschedule({"k_max": 3})
    assert loop.scheduling.settings["k_max"] == 3


def test_thresholds_by_hand_stay_until_the_gates_settings_change() -> None:
    loop = ngram_loop()
    loop.reschedule({"thresholds": {"1": 0.9, "3": None}})
    loop.reschedule({"k_max": 12})
    assert loop.scheduling.state.set_thresholds == {1: 0.9, 3: None}
    loop.reschedule({"thresholds": "per-depth"})
    assert loop.scheduling.state.set_thresholds == {}


ROUND = (
    {"policy": "off"},
    {"policy": "goodput", "k_max": 5},
    {"policy": "echo", "gate": "dense", "thresholds": {"1": 0.7, "2": 0.1}, "explore": 1.0},
    {"k_max": 0},
    {"policy": "static", "k_max": 24},
    {"policy": "dynamic", "branching": 2, "max_depth": 3},
    {"policy": "table", "shapes": "1=2.1"},
    {"policy": "echo", "explore": 0.0, "thresholds": "single", "widen": "off", "k_max_rule": "fixed"},
)


@pytest.mark.parametrize("drafter", ["scripted", "eagle3"])
def test_settings_that_change_every_few_steps_change_no_token(drafter: str, tmp_path: Path) -> None:
    target = tiny_target()
    if drafter == "eagle3":
        head = open_eagle3(write_head(tmp_path, ORIGINAL, head_tensors(ORIGINAL)), target)
        loop = tiny_loop(target, head, drafter="eagle3", draft_model=str(tmp_path), branching=20, max_depth=3)
    else:
        loop = tiny_loop(target, scripted("llama", 8))
    requests, k_max_seen = mixed_requests(8), set()
    for request in requests:
        loop.add(request)
    step = 0
    while loop.has_work:
        if step % 3 == 0:
            loop.reschedule(ROUND[step // 3 % len(ROUND)])
        loop.step()
        step += 1
        assert loop.last_record is not None
        assert loop.last_record.num_verified <= loop.last_record.k_max <= loop.config.k_max
        k_max_seen.add(loop.last_record.k_max)
    loop.check_integrity()
    assert {0, 5, 24} <= k_max_seen and loop.scheduling.state.num_explored > 0
    for request in requests:
        expected = references("llama", 8)[request.request_id]
        assert (request.output_ids, request.finish) == (expected.output_ids, expected.finish)
    assert sum(request.stats.num_accepted for request in requests) > 0


def test_what_the_loop_feeds_to_the_drift_is_what_calibration_would_read() -> None:
    loop = tiny_loop(tiny_target(), scripted("llama", 8, signal=True), explore=0.5, k_max=60)
    loop.recording = True
    for request in mixed_requests(8):
        loop.add(request)
    expected = []
    while loop.has_work:
        loop.step()
        assert loop.last_record is not None
        if loop.last_record.explored:
            assert not loop.last_record.truncated
            expected += [reading for reading in loop.last_record.gate_readings if reading.depth == 3]
    column = loop.scheduler._drift.columns[3]
    assert column.confidence.tolist() == [reading.confidence for reading in expected]
    assert column.accepted.tolist() == [reading.accepted for reading in expected]
    assert len(expected) > 20 and 0 < column.accepted.mean() < 1


def long_answer(server: Running, answers: list[httpx.Response]) -> threading.Thread:
    body = {"input_ids": list(mixed_requests(1)[0].prompt_ids), "sampling_params": LONG}
    thread = threading.Thread(target=lambda: answers.append(server.client.post("/generate", json=body)))
    thread.start()
    return thread


LONG = {"max_new_tokens": 40, "temperature": 0.0}


def test_the_kill_switch_works_while_a_request_runs_and_its_tokens_stay() -> None:
    loops: list[DecodeLoop] = []

    def load() -> DecodeLoop:
        loops.append(ngram_loop())
        return loops[0]

    answers: list[httpx.Response] = []
    with serving(load=load) as server:
        thread = long_answer(server, answers)
        for changes in ({"policy": "off"}, {"policy": "echo", "k_max": 6}, {"policy": "off"}):
            assert server.client.post(PATH, json=changes).status_code == 200
        thread.join()
        before = server.client.get(PATH).json()["num_steps"]
        again: list[httpx.Response] = []
        long_answer(server, again).join()
        found = server.client.get(PATH).json()
        refused = server.client.post(PATH, json={"k_max": 25})
    expected = references("llama", 8)["r0"].output_ids
    assert answers[0].json()["output_ids"] == again[0].json()["output_ids"] == expected
    assert again[0].json()["meta_info"]["spec_draft_token_num"] == 0
    assert (found["policy"], found["settings"]["k_max"], found["num_policy_changes"]) == ("off", 6, 3)
    assert found["num_steps"] == before + len(expected) - 1  # plain decoding: a step per token behind the first
    assert error_of(refused)["param"] == "k_max" and "24" in error_of(refused)["message"]
