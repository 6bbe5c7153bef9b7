"""The server over a real decode loop: what HTTP returns is what the loop emits."""

import json
import re
from typing import Any

import pytest
import torch

from echo_sched.engine.draft.ngram import NGramDrafter
from echo_sched.loop import DecodeLoop
from echo_sched.types import Request
from tests.byte_text import byte_tokenizer
from tests.loops import EOS_ID, TinyTokenizer, mixed_requests, processed_requests, references, tiny_loop, tiny_target
from tests.server_harness import Running, serving
from tests.tiny_models import decode, tiny_model


class CallableTokenizer(TinyTokenizer):
    """Text in the tiny models' own alphabet: one token per letter."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": ["abcdefghij".index(letter) for letter in text]}


def load() -> DecodeLoop:
    return tiny_loop(tiny_target("llama", tokenizer=CallableTokenizer()), NGramDrafter())


def body_of(request: Request) -> dict[str, Any]:
    """The request as a client would send it."""
    params = request.params
    return {
        "input_ids": list(request.prompt_ids),
        "speculation": params.speculation,
        "sampling_params": {
            "max_new_tokens": params.max_new_tokens,
            "temperature": params.temperature,
            "top_k": params.top_k,
            "top_p": params.top_p,
            "min_p": params.min_p,
            "sampling_seed": params.seed,
            "stop": list(params.stop),
            "stop_token_ids": list(params.stop_token_ids),
            "ignore_eos": params.ignore_eos,
            "repetition_penalty": params.repetition_penalty,
            "presence_penalty": params.presence_penalty,
            "frequency_penalty": params.frequency_penalty,
            "logit_bias": {str(token): bias for token, bias in params.logit_bias},
            "allowed_token_ids": params.allowed_token_ids,
            "bad_token_ids": params.bad_token_ids,
            "min_new_tokens": params.min_new_tokens,
        },
    }


@pytest.mark.parametrize("index", range(8))
@pytest.mark.parametrize("make", [mixed_requests, processed_requests])
def test_answers_and_streams_are_what_plain_decoding_emits(make: Any, index: int) -> None:
    request = make(8)[index]
    expected = references("llama", 8, make)[request.request_id]
    with serving(load=load) as server:
        answer = server.client.post("/generate", json=body_of(request)).json()
        assert answer["output_ids"] == expected.output_ids
        assert answer["meta_info"]["finish_reason"]["type"] == expected.finish.type
        last = last_chunk(server, body_of(request) | {"stream": True})
    assert last["output_ids"] == expected.output_ids and last["text"] == answer["text"]


def last_chunk(server: Running, body: dict[str, Any]) -> dict[str, Any]:
    with server.client.stream("POST", "/generate", json=body) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    chunk: dict[str, Any] = json.loads(lines[-2])
    return chunk


def test_what_leaves_no_token_is_400_by_name() -> None:
    """EOS is known to the engine alone, so it is the engine that refuses."""
    sampling = {"allowed_token_ids": [EOS_ID], "min_new_tokens": 1}
    with serving(load=load) as server:
        refused = server.client.post("/generate", json={"input_ids": [1], "sampling_params": sampling})
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "min_new_tokens"


def test_each_of_several_answers_is_what_its_seed_alone_gives() -> None:
    body = body_of(processed_requests(8)[7])
    with serving(load=load) as server:
        sampling = body["sampling_params"] | {"n": 4}
        answers = server.client.post("/generate", json=body | {"sampling_params": sampling}).json()
        assert answers[0]["output_ids"] == references("llama", 8, processed_requests)["p7"].output_ids
        for answer in answers:
            alone = body["sampling_params"] | {"sampling_seed": answer["meta_info"]["sampling_seed"]}
            single = server.client.post("/generate", json=body | {"sampling_params": alone}).json()
            assert single["output_ids"] == answer["output_ids"]
    assert len({tuple(answer["output_ids"]) for answer in answers}) == 4


def logprob_body(**fields: Any) -> dict[str, Any]:
    body = body_of(processed_requests(8)[1])
    return body | {"return_logprob": True} | fields


def test_logprobs_have_the_native_shape() -> None:
    expected = references("llama", 8, processed_requests)["p1"].output_ids
    prompt = list(processed_requests(8)[1].prompt_ids)
    tokens = (*prompt, *expected)
    with torch.no_grad():
        model_says = torch.log_softmax(tiny_model("llama")(torch.tensor([tokens])).logits[0].float(), dim=-1)
    with serving(load=load) as server:
        plain = post(server, logprob_body())["meta_info"]
        whole = post(server, logprob_body(top_logprobs_num=2, logprob_start_len=4, return_text_in_logprobs=True))
        silent = post(server, logprob_body(return_logprob=False, top_logprobs_num=0, logprob_start_len=-1))
    assert [entry[1:] for entry in plain["output_token_logprobs"]] == [[token, None] for token in expected]
    assert plain["input_token_logprobs"] == [] and "output_top_logprobs" not in plain
    assert not {key for key in silent["meta_info"] if "logprob" in key}

    meta = whole["meta_info"]
    assert [entry[1:] for entry in meta["input_token_logprobs"]] == [[t, decode([t])] for t in prompt[4:]]
    assert meta["input_token_logprobs"][0][0] is None and meta["input_top_logprobs"][0] is None
    values = [entry[0] for entry in (*meta["input_token_logprobs"][1:], *meta["output_token_logprobs"])]
    judged = [float(model_says[place - 1, tokens[place]]) for place in range(5, len(tokens))]
    assert values == pytest.approx(judged, abs=2e-6)
    tops = [*meta["input_top_logprobs"][1:], *meta["output_top_logprobs"]]
    assert len(tops) == len(judged) and all(len(top) == 2 for top in tops)
    for place, top in enumerate(tops, start=4):
        best = model_says[place].topk(2)
        assert [token for _, token, _ in top] == best.indices.tolist()
        assert [value for value, _, _ in top] == pytest.approx(best.values.tolist(), abs=2e-6)
        assert [text for *_, text in top] == [decode([token]) for token in best.indices.tolist()]


def test_streamed_logprobs_grow_with_the_tokens() -> None:
    body = logprob_body(logprob_start_len=0, top_logprobs_num=1)
    with serving(load=load) as server:
        whole = post(server, body)["meta_info"]
        with server.client.stream("POST", "/generate", json=body | {"stream": True}) as response:
            lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    chunks = [json.loads(line) for line in lines[:-1]]
    for chunk in chunks:
        meta, count = chunk["meta_info"], len(chunk["output_ids"])
        for name in ("output_token_logprobs", "output_top_logprobs"):
            assert meta[name] == whole[name][:count]
        for name in ("input_token_logprobs", "input_top_logprobs"):
            assert meta[name] == whole[name]
    assert len(chunks) > 1


def test_a_list_may_ask_for_each_prompt_apart() -> None:
    fields = {"return_logprob": [True, False, True], "top_logprobs_num": 1, "logprob_start_len": [-1, -1, 1]}
    body = {"input_ids": [[1, 2], [3, 4], [5, 6]], "sampling_params": {"max_new_tokens": 2, "n": 2}, **fields}
    with serving(load=load) as server:
        metas = [answer["meta_info"] for answer in post(server, body)]
    assert [len(meta.get("output_token_logprobs", [])) for meta in metas] == [2, 2, 0, 0, 2, 2]
    assert [len(meta.get("input_token_logprobs", [])) for meta in metas] == [0, 0, 0, 0, 1, 1]


def post(server: Running, body: dict[str, Any]) -> Any:
    response = server.client.post("/generate", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def load_byte_level() -> DecodeLoop:
    return tiny_loop(tiny_target("llama", tokenizer=byte_tokenizer()), NGramDrafter())


SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "tag": {"enum": ["ab", "cd"]}},
    "required": ["ok", "tag"],
    "additionalProperties": False,
}


def constrained(**fields: Any) -> dict[str, Any]:
    sampling = {"max_new_tokens": 150, "sampling_seed": 3, "temperature": 0.8} | fields
    return {"input_ids": [5, 6, 7], "sampling_params": sampling}


def test_answers_are_what_a_schema_or_a_regex_says() -> None:
    with serving(load=load_byte_level) as server:
        answers = post(server, constrained(json_schema=SCHEMA, n=3))
        as_text = post(server, constrained(json_schema=json.dumps(SCHEMA)))
        streamed = last_chunk(server, constrained(json_schema=SCHEMA) | {"stream": True})
        matching = post(server, constrained(regex="(ab|c){4}"))
        metrics = server.client.get("/metrics").text
    for answer in answers:
        value = json.loads(answer["text"])
        assert set(value) == {"ok", "tag"} and isinstance(value["ok"], bool) and value["tag"] in ("ab", "cd")
        assert answer["meta_info"]["finish_reason"] == {"type": "stop"}
    assert answers[0]["output_ids"] == as_text["output_ids"] == streamed["output_ids"]
    assert re.fullmatch("(ab|c){4}", matching["text"])
    assert 'echo_sched_pruned_nodes_total{stage="grammar"}' in metrics


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"regex": "("}, "regex"),
        ({"json_schema": "{"}, "json_schema"),
        ({"json_schema": {"not": {}}}, "json_schema"),
        ({"json_schema": {"type": "foo"}}, "json_schema"),
    ],
)
def test_a_bad_schema_or_regex_is_400_by_name_before_any_stream(
    fields: dict[str, Any], param: str, stream: bool
) -> None:
    with serving(load=load_byte_level) as server:
        refused = server.client.post("/generate", json=constrained(**fields) | {"stream": stream})
        assert refused.status_code == 400 and refused.json()["error"]["param"] == f"sampling_params.{param}"
        assert len(post(server, constrained(max_new_tokens=2))["output_ids"]) == 2, "the loop goes on"


def test_a_tokenizer_without_bytes_refuses_grammars_by_name() -> None:
    with serving(load=load) as server:
        refused = server.client.post("/generate", json=constrained(regex="a"))
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "sampling_params.regex"
