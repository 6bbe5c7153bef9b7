"""The server over a real decode loop: what HTTP returns is what the loop emits."""

import json
from typing import Any

import pytest

from echo_sched.engine.draft.ngram import NGramDrafter
from echo_sched.loop import DecodeLoop
from tests.loops import TinyTokenizer, mixed_requests, references, tiny_loop, tiny_target
from tests.server_harness import Running, serving


class CallableTokenizer(TinyTokenizer):
    """Text in the tiny models' own alphabet: one token per letter."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": ["abcdefghij".index(letter) for letter in text]}


def load() -> DecodeLoop:
    return tiny_loop(tiny_target("llama", tokenizer=CallableTokenizer()), NGramDrafter())


def body_of(index: int) -> dict[str, Any]:
    """Request `index` of `mixed_requests`, as a client would send it."""
    request = mixed_requests(8)[index]
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
        },
    }


@pytest.mark.parametrize("index", range(8))
def test_answers_and_streams_are_what_plain_decoding_emits(index: int) -> None:
    expected = references("llama", 8)[f"r{index}"]
    with serving(load=load) as server:
        answer = server.client.post("/generate", json=body_of(index)).json()
        assert answer["output_ids"] == expected.output_ids
        assert answer["meta_info"]["finish_reason"]["type"] == expected.finish.type
        last = last_chunk(server, body_of(index) | {"stream": True})
    assert last["output_ids"] == expected.output_ids and last["text"] == answer["text"]


def last_chunk(server: Running, body: dict[str, Any]) -> dict[str, Any]:
    with server.client.stream("POST", "/generate", json=body) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    chunk: dict[str, Any] = json.loads(lines[-2])
    return chunk
