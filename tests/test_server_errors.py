"""Everything that is not a success: which status, which field is named, always in one shape."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server_harness import UNWELCOME, UNWELCOME_REGEX, FakeLoop, Running, serving, until

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving(max_body_bytes=5000) as running:
        yield running


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return dict(body["error"])


def sampling(**fields: Any) -> dict[str, Any]:
    return {"text": "hello", "sampling_params": fields}


BAD_BODIES: list[tuple[dict[str, Any], str]] = [
    ({}, "text"),
    ({"text": ""}, "text"),
    ({"text": []}, "text"),
    ({"text": ["a", ""]}, "text[1]"),
    ({"text": 3}, "text"),
    ({"text": ["a", 3]}, "text[1]"),
    ({"text": "a", "input_ids": [1]}, "input_ids"),
    ({"input_ids": []}, "input_ids"),
    ({"input_ids": [[]]}, "input_ids[0]"),
    ({"input_ids": [1, "2"]}, "input_ids[1]"),
    ({"input_ids": [1, True]}, "input_ids[1]"),
    ({"input_ids": [1, 128]}, "input_ids[1]"),
    ({"input_ids": [[1], [2, -1]]}, "input_ids[1][1]"),
    ({"text": "a", "stream": "yes"}, "stream"),
    ({"text": "a", "speculation": 0}, "speculation"),
    ({"text": "a", "priority": -1}, "priority"),
    ({"text": "a", "priority": "high"}, "priority"),
    ({"text": "a", "priority": float("nan")}, "priority"),
    ({"text": "a", "priority": [1]}, "priority"),
    ({"text": ["a", "b"], "priority": [1]}, "priority"),
    ({"text": "a", "tpot_slo_ms": 0}, "tpot_slo_ms"),
    ({"text": "a", "tpot_slo_ms": True}, "tpot_slo_ms"),
    ({"text": ["a", "b"], "tpot_slo_ms": [50, -1]}, "tpot_slo_ms"),
    ({"text": "a", "rid": ["r"]}, "rid"),
    ({"text": "a", "rid": ""}, "rid"),
    ({"text": ["a", "b"], "rid": ["r", "r"]}, "rid"),
    ({"text": ["a", "b"], "rid": "r"}, "rid"),
    ({"text": "a", "sampling_params": 3}, "sampling_params"),
    ({"text": "a", "sampling_params": [{}]}, "sampling_params"),
    ({"text": ["a", "b"], "sampling_params": [{}]}, "sampling_params"),
    ({"text": ["a", "b"], "sampling_params": [{}, {"top_p": 2}]}, "sampling_params[1].top_p"),
    ({"text": "a", "max_new_tokens": 4}, "max_new_tokens"),
    (sampling(temprature=0.5), "sampling_params.temprature"),
    (sampling(max_new_tokens=0), "sampling_params.max_new_tokens"),
    (sampling(max_new_tokens=-3), "sampling_params.max_new_tokens"),
    (sampling(max_new_tokens=5.5), "sampling_params.max_new_tokens"),
    (sampling(max_new_tokens="5"), "sampling_params.max_new_tokens"),
    (sampling(max_new_tokens=True), "sampling_params.max_new_tokens"),
    (sampling(temperature=-0.1), "sampling_params.temperature"),
    (sampling(temperature=float("nan")), "sampling_params.temperature"),
    (sampling(temperature=float("inf")), "sampling_params.temperature"),
    (sampling(top_p=0), "sampling_params.top_p"),
    (sampling(top_p=1.1), "sampling_params.top_p"),
    (sampling(top_k=0), "sampling_params.top_k"),
    (sampling(min_p=-0.1), "sampling_params.min_p"),
    (sampling(stop=""), "sampling_params.stop"),
    (sampling(stop=["a", ""]), "sampling_params.stop"),
    (sampling(stop_token_ids=[3, 128]), "sampling_params.stop_token_ids[1]"),
    (sampling(ignore_eos=1), "sampling_params.ignore_eos"),
    (sampling(sampling_seed=-1), "sampling_params.sampling_seed"),
    (sampling(sampling_seed=2**64), "sampling_params.sampling_seed"),
    (sampling(n=0), "sampling_params.n"),
    (sampling(n=129), "sampling_params.n"),
    (sampling(n=1.0), "sampling_params.n"),
    ({"text": ["a", "b"], "rid": ["r", "r-1"], "sampling_params": [{"n": 2}, {}]}, "rid"),
    (sampling(min_new_tokens=-1), "sampling_params.min_new_tokens"),
    (sampling(min_new_tokens=1.0), "sampling_params.min_new_tokens"),
    (sampling(min_new_tokens=6, max_new_tokens=5), "sampling_params.min_new_tokens"),
    (sampling(repetition_penalty=0), "sampling_params.repetition_penalty"),
    (sampling(repetition_penalty=2.1), "sampling_params.repetition_penalty"),
    (sampling(presence_penalty=float("nan")), "sampling_params.presence_penalty"),
    (sampling(presence_penalty=-2.1), "sampling_params.presence_penalty"),
    (sampling(frequency_penalty=3), "sampling_params.frequency_penalty"),
    (sampling(frequency_penalty="1"), "sampling_params.frequency_penalty"),
    (sampling(logit_bias={"128": 1.0}), "sampling_params.logit_bias"),
    (sampling(logit_bias={"-1": 1.0}), "sampling_params.logit_bias"),
    (sampling(logit_bias={" 5": 1.0}), "sampling_params.logit_bias"),
    (sampling(logit_bias={"five": 1.0}), "sampling_params.logit_bias"),
    (sampling(logit_bias={"٥": 1.0}), "sampling_params.logit_bias"),
    (sampling(logit_bias={"9" * 4500: 1.0}), "sampling_params.logit_bias"),
    (sampling(logit_bias={"5": 1.0, "05": 1.0}), "sampling_params.logit_bias"),
    (sampling(logit_bias={"5": float("inf")}), "sampling_params.logit_bias"),
    (sampling(logit_bias={"5": 10**400}), "sampling_params.logit_bias"),
    (sampling(logit_bias={"5": "1"}), "sampling_params.logit_bias"),
    (sampling(logit_bias=[1.0]), "sampling_params.logit_bias"),
    (sampling(allowed_token_ids=[]), "sampling_params.allowed_token_ids"),
    (sampling(allowed_token_ids=[3, 128]), "sampling_params.allowed_token_ids[1]"),
    (sampling(allowed_token_ids=[3], bad_token_ids=[3]), "sampling_params.allowed_token_ids"),
    (sampling(bad_token_ids=[-1]), "sampling_params.bad_token_ids[0]"),
    (sampling(regex=UNWELCOME_REGEX), "sampling_params.regex"),
    (sampling(regex="a", json_schema="{}"), "sampling_params.regex"),
    (sampling(regex=["a"]), "sampling_params.regex"),
    (sampling(json_schema=[1]), "sampling_params.json_schema"),
    (sampling(json_schema={"minimum": float("nan")}), "sampling_params.json_schema"),
    (sampling(ebnf="root ::= x"), "sampling_params.ebnf"),
    ({"text": "a", "return_logprob": 1}, "return_logprob"),
    ({"text": "a", "return_logprob": [True]}, "return_logprob"),
    ({"text": ["a", "b"], "return_logprob": [True]}, "return_logprob"),
    ({"text": "a", "top_logprobs_num": 5}, "top_logprobs_num"),
    ({"text": "a", "return_logprob": True, "top_logprobs_num": 21}, "top_logprobs_num"),
    ({"text": "a", "return_logprob": True, "top_logprobs_num": -1}, "top_logprobs_num"),
    ({"text": "a", "return_logprob": True, "top_logprobs_num": True}, "top_logprobs_num"),
    ({"text": "a", "return_logprob": True, "logprob_start_len": -2}, "logprob_start_len"),
    ({"text": "a", "return_logprob": True, "logprob_start_len": 2}, "logprob_start_len"),
    ({"text": "a", "logprob_start_len": 1}, "logprob_start_len"),
    ({"text": "a", "token_ids_logprob": [3]}, "token_ids_logprob"),
    ({"text": "a", "lora_path": "adapter"}, "lora_path"),
    ({"text": "a", "tools": [{"type": "function"}]}, "tools"),
    ({"text": "a", "image_data": "http://x/y.png"}, "image_data"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("body", "param"), BAD_BODIES, ids=[f"{param} {body}"[:60] for body, param in BAD_BODIES])
def test_an_invalid_field_is_named(server: Running, body: dict[str, Any], param: str, stream: bool) -> None:
    content = json.dumps({"stream": stream, **body})
    error = error_of(server.client.post("/generate", content=content, headers=JSON), 400)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert param.split(".")[-1].split("[")[0] in error["message"], "the message names the field as well"
    assert not server.loop.requests


def test_half_a_surrogate_pair_is_no_text(server: Running) -> None:
    """JSON can spell it, UTF-8 cannot: as a prompt, as a field's name, or quoted back in a message."""
    for body, param in [
        ({"text": "\ud800"}, "text"),
        ({"text": "a", "rid": ["\ud800"]}, "rid[0]"),
        ({"\ud800": 1}, None),
    ]:
        assert error_of(server.client.post("/generate", content=json.dumps(body), headers=JSON), 400)["param"] == param
    body = {"text": "a", "lora_path": "\ud800"}
    error_of(server.client.post("/generate", content=json.dumps(body), headers=JSON), 400)


def test_a_request_beyond_the_context_says_both_numbers(server: Running) -> None:
    error = error_of(server.client.post("/generate", json=sampling(max_new_tokens=60)), 400)
    assert error["param"] == "sampling_params.max_new_tokens"
    assert all(number in error["message"] for number in ("5", "60", "64"))
    error = error_of(server.client.post("/generate", json={"input_ids": [1] * 64}), 400)
    assert error["param"] == "input_ids" and "64" in error["message"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b'{"text": "a"} x',
        b'{"text": "\xff"}',
        b'{"text": ' + b"9" * 4400 + b"}",
        b"[" * 4900,
    ],
    ids=["empty", "cut", "list", "null", "string", "trailing", "not utf-8", "long number", "deep"],
)
def test_a_body_that_is_no_json_object_is_400(server: Running, content: bytes) -> None:
    error = error_of(server.client.post("/generate", content=content, headers=JSON), 400)
    assert error["code"] == "malformed_json"


def test_a_number_too_large_for_a_float_is_refused_by_name(server: Running) -> None:
    content = b'{"text": "a", "sampling_params": {"temperature": 1e999}}'
    error = error_of(server.client.post("/generate", content=content, headers=JSON), 400)
    assert error["param"] == "sampling_params.temperature"


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_another_content_type_is_400_and_says_what_is_wanted(server: Running, content_type: str) -> None:
    headers = {"Content-Type": content_type} if content_type else {}
    error = error_of(server.client.post("/generate", content=b'{"text": "a"}', headers=headers), 400)
    assert "application/json" in error["message"]


def test_a_charset_does_no_harm(server: Running) -> None:
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    content = json.dumps(sampling(max_new_tokens=1))
    assert server.client.post("/generate", content=content, headers=headers).status_code == 200


def test_a_large_body_is_413_whether_it_announces_its_size_or_not(server: Running) -> None:
    body = json.dumps({"text": "a" * 6000}).encode()
    error_of(server.client.post("/generate", content=body, headers=JSON), 413)
    error_of(server.client.post("/generate", content=iter([body]), headers=JSON), 413)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("POST", "/v1/completions", 404),
        ("POST", "/flush_cache", 404),
        ("GET", "/generate", 405),
        ("POST", "/health", 405),
    ],
)
def test_unknown_routes_and_methods_keep_the_shape(server: Running, method: str, path: str, status: int) -> None:
    assert path in error_of(server.client.request(method, path), status)["message"]


def test_aborting_what_does_not_run_is_400(server: Running) -> None:
    assert error_of(server.client.post("/abort_request", json={"rid": "nobody"}), 400)["param"] == "rid"
    assert error_of(server.client.post("/abort_request", json={}), 400)["param"] == "rid"


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_refuses_is_400_before_any_stream_and_takes_nothing_with_it(stream: bool) -> None:
    with serving() as server:
        body = {"input_ids": [[1], [UNWELCOME]], "stream": stream}
        error = error_of(server.client.post("/generate", json=body), 400)
        assert "does not like" in error["message"]
        until(lambda: not server.loop.requests)
        assert server.client.post("/generate", json={"text": "a"}).status_code == 200


def test_an_unexpected_exception_is_500_in_the_shape_and_leaks_nothing() -> None:
    class Untokenizable(FakeLoop):
        def tokenizer(self, text: str) -> dict[str, list[int]]:
            raise ZeroDivisionError("a secret")

    with serving(Untokenizable()) as server:
        error = error_of(server.client.post("/generate", json={"text": "a"}), 500)
        assert "secret" not in error["message"]
        assert server.client.get("/health").status_code == 200
        assert server.client.post("/generate", json={"input_ids": [1]}).status_code == 200


def test_a_full_queue_is_503_and_counts_every_prompt() -> None:
    loop = FakeLoop(slots=2)
    loop.unblocked.clear()
    with serving(loop, max_queued_requests=3) as server:
        held = threading.Thread(
            target=httpx.post, args=(f"{server.url}/generate",), kwargs={"json": {"text": ["a"] * 4}}
        )
        held.start()
        until(lambda: len(loop.requests) == 4)
        refused = server.client.post("/generate", json={"text": ["a", "b"]})
        assert error_of(refused, 503)["code"] == "queue_full"
        assert int(refused.headers["Retry-After"]) >= 1
        loop.unblocked.set()
        held.join()
        assert server.client.post("/generate", json={"text": ["a", "b"]}).status_code == 200
        too_many = error_of(server.client.post("/generate", json={"text": ["a"] * 6}), 400)
        assert "6" in too_many["message"], "what can never fit is no matter of trying again"
        assert too_many["param"] == "text"


def test_the_queue_counts_every_answer_to_every_prompt() -> None:
    loop = FakeLoop(slots=2)
    loop.unblocked.clear()
    with serving(loop, max_queued_requests=3) as server:
        body = {"input_ids": [[1], [2]], "sampling_params": {"n": 2}}
        held = threading.Thread(target=httpx.post, args=(f"{server.url}/generate",), kwargs={"json": body})
        held.start()
        until(lambda: len(loop.requests) == 4)
        assert error_of(server.client.post("/generate", json=body), 503)["code"] == "queue_full"
        loop.unblocked.set()
        held.join()
        body["sampling_params"] = {"n": 3}
        too_many = error_of(server.client.post("/generate", json=body), 400)
        assert too_many["param"] == "sampling_params.n" and "6" in too_many["message"]


def test_an_id_in_use_is_refused() -> None:
    loop = FakeLoop()
    loop.unblocked.clear()
    with serving(loop) as server:
        body = {"text": "a", "rid": "r"}
        first = threading.Thread(target=server.client.post, args=("/generate",), kwargs={"json": body})
        first.start()
        until(lambda: loop.requests)
        assert error_of(server.client.post("/generate", json=body), 400)["param"] == "rid"
        loop.unblocked.set()
        first.join()
        assert server.client.post("/generate", json=body).status_code == 200


def test_the_name_that_answers_share_is_in_use_while_one_of_them_runs() -> None:
    loop = FakeLoop()
    loop.unblocked.clear()
    with serving(loop) as server:
        body = {"text": "a", "rid": "r", "sampling_params": {"n": 2}}
        first = threading.Thread(target=server.client.post, args=("/generate",), kwargs={"json": body})
        first.start()
        until(lambda: len(loop.requests) == 2)
        for rid in ("r", "r-1"):
            assert error_of(server.client.post("/generate", json={"text": "a", "rid": rid}), 400)["param"] == "rid"
        loop.unblocked.set()
        first.join()


def test_with_a_key_only_probes_and_metrics_are_open() -> None:
    with serving(api_key="sesame") as server:
        for path in ("/health", "/ready", "/metrics"):
            assert server.client.get(path).status_code == 200
        for path in ("/get_server_info", "/v1/models", "/health_generate", "/docs", "/nowhere"):
            assert error_of(server.client.get(path), 401)["type"] == "authentication_error"
        for wrong in ("Bearer sesam", "Bearer sesame2", "sesame", "Bearer \xe9"):
            headers = {"Authorization": wrong.encode("latin-1")}
            error_of(server.client.get("/get_server_info", headers=headers), 401)
        right = {"Authorization": "Bearer sesame"}
        info = server.client.get("/get_server_info", headers=right)
        assert info.status_code == 200 and "sesame" not in info.text
        assert server.client.post("/generate", json={"text": "a"}, headers=right).status_code == 200
