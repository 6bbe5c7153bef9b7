"""Acceptance length is one number: tokens of verify steps / verify steps, over HTTP and in process, on the same run."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import load_test
from benchmarks.trial import Run
from echo_sched.config import EngineConfig
from echo_sched.loop import DecodeLoop
from echo_sched.types import Request, SamplingParams
from tests.server_harness import serving
from tests.tiny_models import WORDS

NUM_TOKENS = 24
# every prompt repeats itself, so the n-gram drafter has something to say now and then, and in between nothing
TEXTS = [" ".join(WORDS[row : row + 3] * 4) for row in range(0, 30, 5)]


@pytest.fixture(scope="module")
def loop(model_folder: Path) -> DecodeLoop:
    return DecodeLoop.from_config(
        EngineConfig(model=str(model_folder), max_batch_size=2, max_model_len=96, k_max=8, price="off")
    )


def in_process(loop: DecodeLoop, texts: Sequence[str]) -> float:
    params = SamplingParams(max_new_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)
    prompts = [tuple(loop.tokenizer.encode(text)) for text in texts]
    requests = [Request(f"row-{row}", prompt, params) for row, prompt in enumerate(prompts)]
    trial = Run(loop, requests, 1).finished()
    assert trial.counts.num_steps_without_draft > 0, "steps without a draft are what the two could disagree about"
    assert trial.acceptance.summary()["length"] == pytest.approx(trial.acceptance_length)
    return trial.acceptance_length


def test_the_two_benchmarks_and_the_server_agree(
    loop: DecodeLoop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = in_process(loop, TEXTS)
    assert expected > 1.0
    dataset = tmp_path / "prompts.jsonl"
    dataset.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in TEXTS))
    with serving(load=lambda: loop) as server:
        flags = ["--base-url", server.url, "--dataset-path", str(dataset), "--max-new-tokens", str(NUM_TOKENS)]
        assert load_test.main([*flags, "--ignore-eos", "--max-concurrency", "1", "--num-warmups", "0"]) == 0
        info = server.client.get("/get_server_info").json()
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["spec_decode_acceptance_length"] == pytest.approx(expected)
    assert info["internal_states"][0]["avg_spec_accept_length"] == pytest.approx(expected)
    assert document["spec_decode_acceptance_length_where_drafted"] > expected


def test_without_speculation_it_is_one(loop: DecodeLoop, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = loop.with_policy(loop.config.model_copy(update={"policy": "off"}))
    assert in_process(plain, TEXTS) == 1.0
    dataset = tmp_path / "prompts.jsonl"
    dataset.write_text(json.dumps({"prompt": TEXTS[0]}) + "\n")
    with serving(load=lambda: plain) as server:
        assert load_test.main(["--base-url", server.url, "--dataset-path", str(dataset), "--max-new-tokens", "8"]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["spec_decode_acceptance_length"] == 1.0
    assert document["spec_decode_acceptance_length_where_drafted"] is None
