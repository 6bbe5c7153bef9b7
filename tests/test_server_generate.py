"""POST /generate over real HTTP: shapes, streams, lists, defaults and aborts. The engine is scripted."""

import itertools
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from echo_sched.params import choice_seed
from echo_sched.types import Request
from tests.server_harness import LETTERS, FakeLoop, Running, serving, until

META_FIELDS = {
    "id",
    "finish_reason",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "sampling_seed",
    "e2e_latency",
    "spec_verify_ct",
    "spec_accept_length",
    "spec_accept_rate",
    "spec_accept_token_num",
    "spec_draft_token_num",
    "spec_truncated_ct",
    "spec_widened_ct",
    "spec_depth_histogram",
}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving() as running:
        yield running


def generate(server: Running, **body: Any) -> Any:
    response = server.client.post("/generate", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def events_of(text: str) -> list[Any]:
    """The JSON of each event; the last one must be [DONE]."""
    *events, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert all(event.startswith("data: ") for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events]


def test_one_prompt_gets_one_object_in_the_native_shape(server: Running) -> None:
    result = generate(server, text="hello", rid="my-request", sampling_params={"max_new_tokens": 5, "sampling_seed": 7})
    meta = result["meta_info"]
    assert set(result) == {"text", "output_ids", "meta_info"}
    assert (result["text"], result["output_ids"]) == ("abcde", [0, 1, 2, 3, 4])
    assert set(meta) == META_FIELDS
    assert (meta["id"], meta["prompt_tokens"], meta["completion_tokens"]) == ("my-request", 5, 5)
    assert (meta["cached_tokens"], meta["sampling_seed"]) == (0, 7)
    assert meta["finish_reason"] == {"type": "length"}
    assert (meta["spec_verify_ct"], meta["spec_accept_token_num"], meta["spec_draft_token_num"]) == (3, 3, 6)
    assert (meta["spec_accept_length"], meta["spec_accept_rate"]) == (5 / 3, 0.5)
    assert meta["spec_depth_histogram"] == [0, 3]
    assert meta["e2e_latency"] > 0


def test_ids_are_a_prompt_too(server: Running) -> None:
    assert generate(server, input_ids=[1, 2, 3])["meta_info"]["prompt_tokens"] == 3
    results = generate(server, input_ids=[[1], [2, 3]])
    assert [result["meta_info"]["prompt_tokens"] for result in results] == [1, 2]


def test_a_list_of_prompts_gets_a_list_in_order_even_of_one(server: Running) -> None:
    results = generate(
        server,
        text=["a", "bb", "ccc"],
        rid=["x", "y", "z"],
        sampling_params=[{"max_new_tokens": 9}, {"max_new_tokens": 2}, {"max_new_tokens": 4}],
    )
    assert [result["index"] for result in results] == [0, 1, 2]
    assert [result["meta_info"]["id"] for result in results] == ["x", "y", "z"]
    assert [result["meta_info"]["prompt_tokens"] for result in results] == [1, 2, 3]
    assert [result["text"] for result in results] == [LETTERS[:9], LETTERS[:2], LETTERS[:4]]
    assert len(generate(server, text=["a"])) == 1


def test_a_stream_is_cumulative_and_ends_with_the_unstreamed_result(server: Running) -> None:
    body = {"text": "hello", "sampling_params": {"max_new_tokens": 7}}
    response = server.client.post("/generate", json={**body, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    events = events_of(response.text)
    assert len(events) > 1
    for earlier, later in itertools.pairwise(events):
        assert later["text"].startswith(earlier["text"]) and len(later["text"]) > len(earlier["text"])
        assert earlier["meta_info"]["finish_reason"] is None
    assert all(set(event["meta_info"]) == META_FIELDS for event in events)
    assert events[-1]["meta_info"]["finish_reason"] == {"type": "length"}
    whole = generate(server, **body)
    assert (events[-1]["text"], events[-1]["output_ids"]) == (whole["text"], whole["output_ids"])


def test_the_streams_of_a_list_carry_their_index(server: Running) -> None:
    body = {"text": ["a", "b", "c"], "sampling_params": {"max_new_tokens": 5}, "stream": True}
    events = events_of(server.client.post("/generate", json=body).text)
    for index in range(3):
        mine = [event for event in events if event["index"] == index]
        assert mine[-1]["text"] == "abcde"
        assert [bool(event["meta_info"]["finish_reason"]) for event in mine] == [False] * (len(mine) - 1) + [True]


def test_several_answers_to_one_prompt_are_a_list_with_seeds_of_their_own(server: Running) -> None:
    sampling = {"max_new_tokens": 3, "n": 3, "sampling_seed": 7}
    results = generate(server, text="hello", rid="r", sampling_params=sampling)
    assert [result["index"] for result in results] == [0, 1, 2]
    assert [result["meta_info"]["id"] for result in results] == ["r-0", "r-1", "r-2"]
    assert [result["meta_info"]["sampling_seed"] for result in results] == [choice_seed(7, k) for k in range(3)]
    assert [result["text"] for result in results] == ["abc"] * 3

    lists = generate(server, text=["a", "bb"], sampling_params=[{"n": 2, "max_new_tokens": 1}, {"max_new_tokens": 1}])
    assert [result["index"] for result in lists] == [0, 1, 2]
    assert [result["meta_info"]["prompt_tokens"] for result in lists] == [1, 1, 2]

    body = {"text": "a", "sampling_params": sampling, "stream": True}
    events = events_of(server.client.post("/generate", json=body).text)
    assert {event["index"] for event in events} == {0, 1, 2}
    assert sum(event["meta_info"]["finish_reason"] is not None for event in events) == 3


def test_seeds_are_drawn_per_request_and_reported(server: Running) -> None:
    results = generate(server, text=["a", "b", "c"], sampling_params={"max_new_tokens": 1, "sampling_seed": None})
    assert len({result["meta_info"]["sampling_seed"] for result in results}) == 3
    several = generate(server, text="a", sampling_params={"max_new_tokens": 1, "n": 4})
    seeds = [result["meta_info"]["sampling_seed"] for result in several]
    assert seeds == [choice_seed(seeds[0], k) for k in range(4)], "one is drawn, the others follow from it"
    assert len(set(seeds)) == 4 and max(seeds) < 2**53


def test_an_omitted_length_is_128_or_what_the_context_leaves() -> None:
    with serving(FakeLoop(max_model_len=256)) as roomy:
        assert generate(roomy, text="hello")["meta_info"]["completion_tokens"] == 128
    with serving(FakeLoop(max_model_len=16)) as tight:
        assert generate(tight, text="hello")["meta_info"]["completion_tokens"] == 11
        assert generate(tight, text="hello", sampling_params={"max_new_tokens": None})["text"] == LETTERS[:11]


def test_sampling_fields_reach_the_engine() -> None:
    loop = FakeLoop()
    loop.unblocked.clear()
    sampling = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 10**9,
        "min_p": 0.1,
        "stop": "zz",
        "stop_token_ids": [5],
        "ignore_eos": True,
        "skip_special_tokens": False,
        "no_stop_trim": True,
        "sampling_seed": 2**64 - 1,
        "max_new_tokens": 3,
        "min_new_tokens": 2,
        "repetition_penalty": 1.5,
        "presence_penalty": -1,
        "frequency_penalty": 0.25,
        "logit_bias": {"7": 3, "0": -1.5},
        "allowed_token_ids": [0, 1, 7],
        "bad_token_ids": [1],
    }
    with serving(loop) as server:
        posted = threading.Thread(
            target=generate, args=(server,), kwargs={"text": "a", "speculation": False, "sampling_params": sampling}
        )
        posted.start()
        until(lambda: loop.requests)
        (request,) = loop.requests.values()
        loop.unblocked.set()
        posted.join()
    params = request.params
    assert (params.temperature, params.top_p, params.min_p, params.seed) == (0.5, 0.9, 0.1, 2**64 - 1)
    assert params.top_k == loop.vocab_size, "a top_k beyond the vocabulary is clamped"
    assert (params.stop, params.stop_token_ids, params.max_new_tokens) == (("zz",), (5,), 3)
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.5, -1.0, 0.25)
    assert (params.logit_bias, params.min_new_tokens) == (((7, 3.0), (0, -1.5)), 2)
    assert (params.allowed_token_ids, params.bad_token_ids) == ((0, 1, 7), (1,))
    assert params.ignore_eos and params.no_stop_trim
    assert not params.skip_special_tokens and not params.speculation


def test_service_fields_reach_the_engine() -> None:
    loop = FakeLoop()
    taken: list[Request] = []
    add = loop.add

    def keep(request: Request) -> None:
        taken.append(request)
        add(request)

    loop.add = keep  # type: ignore[method-assign]
    with serving(loop) as running:
        short = {"max_new_tokens": 1}
        generate(running, text="a", sampling_params=short | {"n": 2}, priority=2, tpot_slo_ms=40)
        generate(running, text=["a", "b"], sampling_params=short, priority=[0, 0.5])
    assert [(r.service.priority, r.service.tpot_slo_ms) for r in taken] == [(2, 40), (2, 40), (1, None), (0.5, None)]


def test_nulls_and_neutral_values_pass(server: Running) -> None:
    sampling = {
        "n": 1,
        "min_new_tokens": 0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0,
        "frequency_penalty": None,
        "logit_bias": {},
        "allowed_token_ids": None,
        "bad_token_ids": [],
        "regex": "",
        "max_new_tokens": 1,
        "stop": None,
        "stop_token_ids": None,
        "temperature": None,
    }
    body = {"lora_path": None, "return_logprob": False, "logprob_start_len": -1, "top_logprobs_num": 0, "stream": None}
    more = {"return_routed_experts": False, "image_data": None, "user": None, "tools": [], "metadata": {}, "rid": None}
    assert generate(server, text="a", sampling_params=sampling, **body, **more)["text"] == "a"
    assert len(generate(server, text=["a", "b"], return_logprob=[False, False], lora_path=[None, None])) == 2


def test_unknown_fields_may_be_a_warning_instead(caplog: pytest.LogCaptureFixture) -> None:
    with serving(unknown_fields="warn") as server:
        result = generate(server, text="a", colour="red", sampling_params={"max_new_tokens": 1, "temprature": 1})
    assert result["text"] == "a"
    assert "colour" in caplog.text and "temprature" in caplog.text


@pytest.mark.parametrize("stream", [False, True])
def test_an_aborted_request_ends_with_what_it_has(stream: bool) -> None:
    with serving(FakeLoop(pace=0.01, max_model_len=4096)) as server:
        body = {"text": "a", "rid": "r", "stream": stream, "sampling_params": {"max_new_tokens": 4000}}
        answers: list[httpx.Response] = []
        caller = threading.Thread(target=lambda: answers.append(server.client.post("/generate", json=body)))
        caller.start()
        until(lambda: server.loop.num_steps > 3)
        aborted = server.client.post("/abort_request", json={"rid": "r"})
        assert aborted.status_code == 200, aborted.text
        caller.join()
        until(lambda: not server.loop.requests)
        assert generate(server, text="a", rid="r", sampling_params={"max_new_tokens": 3})["text"] == "abc"
    result = events_of(answers[0].text)[-1] if stream else answers[0].json()
    assert result["meta_info"]["finish_reason"]["type"] == "abort"
    assert result["text"].startswith("ab") and len(result["text"]) == len(result["output_ids"]) < 4000


def test_aborting_a_prompt_ends_all_its_answers_or_one() -> None:
    with serving(FakeLoop(slots=4, pace=0.01, max_model_len=4096)) as server:
        body = {"text": "a", "rid": "r", "sampling_params": {"n": 3, "max_new_tokens": 4000}}
        answers: list[httpx.Response] = []
        caller = threading.Thread(target=lambda: answers.append(server.client.post("/generate", json=body)))
        caller.start()
        until(lambda: server.loop.num_steps > 1)
        assert server.client.post("/abort_request", json={"rid": "r-1"}).status_code == 200
        until(lambda: set(server.loop.requests) == {"r-0", "r-2"})
        assert server.client.post("/abort_request", json={"rid": "r"}).status_code == 200
        caller.join()
        until(lambda: not server.loop.requests)
    assert [result["meta_info"]["finish_reason"]["type"] for result in answers[0].json()] == ["abort"] * 3


def test_a_request_that_outlives_the_timeout_ends_with_a_reason() -> None:
    with serving(FakeLoop(pace=0.01, max_model_len=4096), request_timeout=0.1) as server:
        result = generate(server, text="a", sampling_params={"max_new_tokens": 4000})
        until(lambda: not server.loop.requests)
    reason = result["meta_info"]["finish_reason"]
    assert reason["type"] == "abort" and "0.1 s" in reason["message"]
    assert result["text"].startswith("ab")
