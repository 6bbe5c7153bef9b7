"""The default model writing JSON: valid by the schema, bit for bit plain decoding's, with forbidden drafts left out."""

import json
import re
from collections import Counter
from typing import Any

import pytest

from echo_sched.config import EngineConfig
from echo_sched.loop import DecodeLoop
from echo_sched.types import FinishReason, Request, SamplingParams
from tests.test_smollm2 import SETTINGS

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "role": {"enum": ["cook", "pilot", "nurse"]},
        "married": {"type": "boolean"},
    },
    "required": ["name", "age", "role", "married"],
    "additionalProperties": False,
}
NUMBERS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "minItems": 3, "maxItems": 6}
DATE = r"(19|20)[0-9]{2}-(0[1-9]|1[0-2])-[0-3][0-9]"
COPIED = 'For example {"name": "Ann", "age": 31, "role": "pilot", "married": true} says it all. Another one: '


def is_person(value: Any) -> bool:
    return (
        list(value) == ["name", "age", "role", "married"]
        and isinstance(value["name"], str)
        and len(value["name"]) <= 24
        and type(value["age"]) is int
        and 0 <= value["age"] <= 150
        and value["role"] in ("cook", "pilot", "nurse")
        and type(value["married"]) is bool
    )


def is_numbers(value: Any) -> bool:
    return 3 <= len(value) <= 6 and all(type(item) is int and 0 <= item <= 99 for item in value)


def constrained_requests(loop: DecodeLoop) -> list[Request]:
    cases: list[tuple[str, dict[str, Any]]] = [
        (COPIED, {"json_schema": json.dumps(PERSON), "temperature": 0.0}),
        (COPIED, {"json_schema": json.dumps(PERSON), "temperature": 0.7, "seed": 1}),
        ("The numbers are 3, 14, 15, 92. As a list: ", {"json_schema": json.dumps(NUMBERS), "temperature": 0.0}),
        ("She was born on 1984-03-12, he on 1979-11-02. The date: ", {"regex": DATE, "temperature": 0.9, "seed": 2}),
        ("The capital of France is", {"temperature": 0.0}),
    ]
    return [
        Request(f"r{i}", tuple(loop.tokenizer(text)["input_ids"]), SamplingParams(max_new_tokens=120, **fields))
        for i, (text, fields) in enumerate(cases)
    ]


@pytest.fixture(scope="module")
def exact() -> DecodeLoop:
    return DecodeLoop.from_config(EngineConfig(**SETTINGS, dtype="bfloat16", numerics="exact"))


def test_exact_structured_output_is_plain_decodings_and_valid(exact: DecodeLoop) -> None:
    counted: Counter[str] = Counter()
    outputs, texts = {}, {}
    for policy, batch in (("off", 1), ("echo", 4)):
        loop = exact.with_policy(exact.config.model_copy(update={"policy": policy, "max_batch_size": batch}))
        requests = constrained_requests(loop)
        texts[policy] = {request.request_id: "" for request in requests}
        for request in requests:
            loop.add(request)
        while loop.has_work:
            for event in loop.step():
                texts[policy][event.request.request_id] += event.text
            assert loop.last_record is not None
            counted["forbidden"] += loop.last_record.num_forbidden
            counted["accepted"] += loop.last_record.num_accepted
        loop.check_integrity()
        outputs[policy] = [request.output_ids for request in requests]
        assert all(request.finish == FinishReason("stop") for request in requests[:4]), requests
    assert outputs["echo"] == outputs["off"] and texts["echo"] == texts["off"]
    assert counted["forbidden"] and counted["accepted"] > 20, counted
    written = texts["echo"]
    assert is_person(json.loads(written["r0"])) and is_person(json.loads(written["r1"]))
    assert is_numbers(json.loads(written["r2"]))
    assert re.fullmatch(DATE, written["r3"])
