"""The server over a real decode loop: what HTTP returns is what the loop emits."""

import json
from typing import Any

import pytest

from echo_sched.engine.draft.ngram import NGramDrafter
from echo_sched.loop import DecodeLoop
from echo_sched.types import Request
from tests.loops import EOS_ID, TinyTokenizer, mixed_requests, processed_requests, references, tiny_loop, tiny_target
from tests.server_harness import Running, serving


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
