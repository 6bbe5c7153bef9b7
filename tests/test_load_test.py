"""The load test against a small server on loopback, and its definitions on planted time stamps."""

import asyncio
import json
import math
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from prometheus_client import CollectorRegistry, Counter, generate_latest

from benchmarks import load_test
from benchmarks.arrivals import random_arrivals, trace_arrivals
from benchmarks.dialects import merged
from benchmarks.metrics import Outcome, parse_goals, summarise
from benchmarks.scrape import read_counters, speculation_between
from echo_sched import cli
from echo_sched.errors import ConfigError, DataError

BUNDLE = 3  # tokens per streamed output of the fake server
NUM_PROMPT_TOKENS = 5
DRAFTED_PER_REQUEST, ACCEPTED_PER_REQUEST = 8, 6
VERIFY_STEPS_PER_REQUEST = 5  # of which two have a draft
API_KEY = "open-sesame"


@dataclass
class FakeServer:
    """Answers with made-up tokens, in bundles; a prompt's text says what should go wrong."""

    bodies: list[dict[str, Any]] = field(default_factory=list)
    num_open: int = 0
    peak_open: int = 0
    url: str = ""
    model_path: str | None = None

    async def answer(self, body: dict[str, Any], piece: Any) -> AsyncIterator[str]:
        """`piece(num_tokens, finish)` writes one event."""
        self.num_open += 1
        self.peak_open = max(self.peak_open, self.num_open)
        try:
            prompt = str(body.get("text", body.get("prompt", "")))
            total = body.get("sampling_params", body).get("max_new_tokens", body.get("max_tokens"))
            for num_tokens in [*range(BUNDLE, total, BUNDLE), total]:
                await asyncio.sleep(0.01)
                if "break" in prompt and num_tokens == total:
                    return
                finish = ("abort" if "cancel" in prompt else "length") if num_tokens == total else None
                yield piece(num_tokens, finish)
            yield "data: [DONE]\n\n"
        finally:
            self.num_open -= 1

    def app(self) -> FastAPI:
        app = FastAPI()

        @app.get("/get_server_info")
        async def info() -> dict[str, Any]:
            return {"model_path": self.model_path, "settings": {"api_key": API_KEY, "policy": "echo"}}

        @app.get("/v1/models")
        async def models() -> dict[str, Any]:
            return {"data": [{"id": "fake-model"}]}

        @app.get("/metrics")
        async def metrics() -> PlainTextResponse:
            per_request = {
                "spec_decode_num_drafts": 2,
                "spec_decode_num_draft_tokens": DRAFTED_PER_REQUEST,
                "spec_decode_num_accepted_tokens": ACCEPTED_PER_REQUEST,
                "verify_steps": VERIFY_STEPS_PER_REQUEST,
                "verify_emitted_tokens": VERIFY_STEPS_PER_REQUEST + ACCEPTED_PER_REQUEST,
            }
            registry = CollectorRegistry()
            for name, amount in per_request.items():
                Counter(f"echo_sched_{name}", "what a server says", registry=registry).inc(amount * len(self.bodies))
            return PlainTextResponse(generate_latest(registry).decode())

        @app.post("/generate")
        async def generate(request: Request) -> Response:
            body = await request.json()
            self.bodies.append(body)
            text = str(body.get("text", ""))
            if "refuse" in text:
                return JSONResponse({"error": {"message": "the queue is full"}}, 503)
            if "crash" in text:
                return JSONResponse({"error": {"message": "the engine fell over"}}, 500)
            return StreamingResponse(self.answer(body, native_event), media_type="text/event-stream")

        @app.post("/v1/completions")
        async def completions(request: Request) -> Response:
            body = await request.json()
            self.bodies.append(body)
            return StreamingResponse(self.answer(body, completion_event), media_type="text/event-stream")

        return app


def native_event(num_tokens: int, finish: str | None) -> str:
    reason = {"type": finish} if finish else None
    meta = {"prompt_tokens": NUM_PROMPT_TOKENS, "completion_tokens": num_tokens, "finish_reason": reason}
    return f"data: {json.dumps({'text': 'x' * num_tokens, 'meta_info': meta})}\n\n"


def completion_event(num_tokens: int, finish: str | None) -> str:
    events: list[dict[str, Any]] = [{"choices": [{"text": "xyz", "finish_reason": None}]}]
    if finish:  # the end comes apart from the last text, and the counts after it
        usage = {"prompt_tokens": NUM_PROMPT_TOKENS, "completion_tokens": num_tokens}
        events += [{"choices": [{"text": "", "finish_reason": finish}]}, {"choices": [], "usage": usage}]
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer()
    running = uvicorn.Server(uvicorn.Config(fake.app(), port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    while not running.started:
        assert thread.is_alive(), "the fake server did not start"
    fake.url = f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}"
    yield fake
    running.should_exit = True
    thread.join()


@pytest.fixture
def prompts(tmp_path: Path) -> Any:
    def write(*texts: str) -> str:
        path = tmp_path / "prompts.jsonl"
        path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
        return str(path)

    return write


def measure(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, dict[str, Any]]:
    code = load_test.main(flags)
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


def test_closed_loop_keeps_to_each_concurrency_and_counts_tokens_from_usage(
    server: FakeServer, prompts: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, output = prompts(*(f"prompt {i}" for i in range(7))), tmp_path / "result.json"
    flags = ("--base-url", server.url, "--dataset-path", path, "--max-new-tokens", "8", "--num-warmups", "1")
    code, document = measure(capsys, *flags, "--max-concurrency", "1,3", "--output", str(output))

    assert code == 0
    assert json.loads(output.read_text()) == document
    assert [run["max_concurrency"] for run in document["runs"]] == [1, 3]
    assert [run["max_concurrent_requests"] for run in document["runs"]] == [1, 3]
    assert server.peak_open == 3
    for run in document["runs"]:
        assert (run["completed"], run["failed"], run["rejected"], run["cancelled"]) == (7, 0, 0, 0)
        assert run["total_output_tokens"] == 7 * 8
        assert run["total_input_tokens"] == 7 * NUM_PROMPT_TOKENS
        assert run["output_throughput"] == pytest.approx(56 / run["duration"])
        assert run["request_goodput"] is None
        # three outputs carry eight tokens: two gaps, seven token intervals over the same time
        assert run["mean_itl_ms"] * 2 == pytest.approx(run["mean_tpot_ms"] * 7)
        assert run["mean_ttft_ms"] + 7 * run["mean_tpot_ms"] == pytest.approx(run["mean_e2el_ms"])


def test_warm_up_reaches_the_server_and_no_number(
    server: FakeServer, prompts: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--base-url", server.url, "--dataset-path", prompts("a", "b"), "--num-warmups", "5")
    _, document = measure(capsys, *flags, "--max-concurrency", "2", "--num-prompts", "3")
    assert len(server.bodies) == 5 + 3
    assert document["completed"] == document["runs"][0]["completed"] == 3
    assert document["spec_decode_num_drafts"] == 2 * 3
    assert document["spec_decode_draft_tokens"] == DRAFTED_PER_REQUEST * 3
    assert document["spec_decode_acceptance_rate"] == pytest.approx(6 / 8)
    assert document["spec_decode_acceptance_length"] == pytest.approx((5 + 6) / 5)
    assert document["spec_decode_acceptance_length_where_drafted"] == pytest.approx(1 + 6 / 2)
    assert document["spec_decode_per_position_acceptance_rates"] is None
    assert document["budget_granted"] is None


def test_what_goes_wrong_is_counted_apart_and_fails_the_command(
    server: FakeServer, prompts: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = prompts("good", "crash", "refuse", "break off", "cancel", "good too")
    code, document = measure(capsys, "--base-url", server.url, "--dataset-path", path, "--num-warmups", "0")
    assert code == 1
    counts = {kind: document[kind] for kind in ("completed", "failed", "rejected", "cancelled")}
    assert counts == {"completed": 2, "failed": 2, "rejected": 1, "cancelled": 1}
    assert document["total_output_tokens"] == 2 * 128
    assert document["failure_reasons"] == {
        "500: the engine fell over": 1,
        "503: the queue is full": 1,
        "the stream ended without a finish reason": 1,
        "the server aborted the request": 1,
    }


def test_bodies_carry_the_sampling_settings_and_a_seed_per_request(
    server: FakeServer, prompts: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    extra = '{"rid": "mine", "sampling_params": {"top_k": 5}}'
    flags = ("--base-url", server.url, "--dataset-path", prompts("one"), "--num-prompts", "2", "--num-warmups", "0")
    settings = ("--temperature", "0.7", "--seed", "40", "--ignore-eos", "--max-new-tokens", "4", "--extra-body", extra)
    measure(capsys, *flags, *settings, "--max-concurrency", "1")
    common = {"max_new_tokens": 4, "temperature": 0.7, "ignore_eos": True, "top_k": 5}
    assert server.bodies == [
        {"text": "one", "stream": True, "rid": "mine", "sampling_params": {**common, "sampling_seed": seed}}
        for seed in (40, 41)
    ]


def test_completions_dialect_measures_a_server_of_another_make(
    server: FakeServer, prompts: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--base-url", server.url, "--dataset-path", prompts("a", "b"), "--num-warmups", "0", "--ignore-eos")
    code, document = measure(capsys, *flags, "--endpoint", "completions", "--max-new-tokens", "8")
    assert code == 0
    assert document["model"] == "fake-model"
    assert document["total_output_tokens"] == 16
    assert {body["model"] for body in server.bodies} == {"fake-model"}
    assert sorted(body["prompt"] for body in server.bodies) == ["a", "b"]
    assert all(body["ignore_eos"] and body["max_tokens"] == 8 for body in server.bodies)
    # three pieces of text, so two gaps; the end comes a little later and is no output
    assert 0 < document["mean_itl_ms"] * 2 <= document["mean_tpot_ms"] * 7


def test_the_servers_tokenizer_applies_the_chat_template(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"?": 0, "USER": 1, "hello": 2, "BOT": 3}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    tokenizer.chat_template = "{% for m in messages %}USER {{ m.content }} {% endfor %}BOT"
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    server.model_path = str(tmp_path / "tokenizer")
    dataset = tmp_path / "chat.jsonl"
    dataset.write_text('{"turns": ["hello"]}\n{"prompt": "hello"}\n')
    flags = ("--base-url", server.url, "--dataset-path", str(dataset), "--max-concurrency", "1", "--num-warmups", "0")
    _, document = measure(capsys, *flags)
    assert [body["input_ids"] for body in server.bodies] == [[1, 2, 3], [2]]
    assert document["tokenizer"] == server.model_path


def test_a_chat_without_a_tokenizer_is_one_clear_error(server: FakeServer, tmp_path: Path) -> None:
    dataset = tmp_path / "chat.jsonl"
    dataset.write_text('{"turns": ["hello"]}\n')
    with pytest.raises(ConfigError, match="--tokenizer"):
        load_test.main(["--base-url", server.url, "--dataset-path", str(dataset)])


def test_secrets_stay_out_of_the_result(server: FakeServer, prompts: Any, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--base-url", server.url, "--dataset-path", prompts("a"), "--api-key", API_KEY, "--metadata", "run=third")
    _, document = measure(capsys, *flags)
    assert API_KEY not in json.dumps(document)
    assert document["argv"] == ["echo-sched", "bench", "load", *("***" if flag == API_KEY else flag for flag in flags)]
    assert document["metadata"] == {"run": "third"}
    assert document["server"] == {"model_path": None, "settings": {"policy": "echo"}}
    for key in ("versions", "machine", "git_commit", "timestamp", "args", "dataset"):
        assert key in document


def test_open_loop_waits_for_the_trace(
    server: FakeServer, prompts: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_bytes(
        b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        b"2023-11-16 18:17:03.9000000,4,1\r\n2023-11-16 18:17:04.1500001,4,1\r\n"
    )
    flags = ("--base-url", server.url, "--dataset-path", prompts("a", "b"), "--trace", str(trace))
    code, document = measure(capsys, *flags, "--max-new-tokens", "2", "--num-warmups", "0")
    assert code == 0
    assert document["max_concurrency"] is None
    assert document["duration"] >= 0.25


def test_bad_input_is_one_line_and_exit_code_2(prompts: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = prompts("a")
    for flags in (
        ["--base-url", "http://127.0.0.1:9", "--dataset-path", path],
        ["--base-url", "127.0.0.1:8000", "--dataset-path", path],
        ["--base-url", "http://127.0.0.1:9", "--dataset-path", path + ".missing"],
        ["--base-url", "http://127.0.0.1:9", "--dataset-path", path, "--goodput", "ttft"],
        ["--base-url", "http://127.0.0.1:9", "--dataset-path", path, "--output", "/no/such/folder/x.json"],
        ["--base-url", "http://127.0.0.1:9", "--dataset-path", path, "--trace", path],
        ["--base-url", "http://127.0.0.1:9", "--dataset-path", path, "--max-concurrency", "1,0"],
        ["--base-url", "http://127.0.0.1:9", "--dataset-path", path, "--max-concurrency", "4,4"],
        ["--base-url", "http://127.0.0.1:9", "--dataset-path", path, "--extra-body", '{"a": NaN}'],
        ["--base-url", "http://127.0.0.1:9", "--dataset-path", path, "--metadata", "words"],
        ["--base-url", "http://127.0.0.1:9"],
    ):
        assert cli.main(["bench", "load", *flags]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("error: ") and captured.err.count("\n") == 1


# Definitions, on planted time stamps.


def planted(start: float, *output_times: float, tokens: int) -> Outcome:
    return Outcome("completed", start, output_times[-1], output_times, NUM_PROMPT_TOKENS, tokens)


def test_latencies_are_what_the_definitions_say() -> None:
    outcomes = [
        planted(0.0, 0.5, 0.7, 1.1, tokens=7),  # bundles: two gaps, six token intervals
        planted(1.0, 2.0, tokens=1),  # a single token has neither ITL nor TPOT
        Outcome("failed", 0.0, 9.0, (8.0,), 5, 1, "lost"),
    ]
    summary = summarise(outcomes, 4.0, {}, percentiles=[50.0, 99.9])
    assert summary["mean_ttft_ms"] == pytest.approx(750)
    assert summary["std_ttft_ms"] == pytest.approx(250)
    assert summary["mean_itl_ms"] == pytest.approx(300)
    assert summary["mean_tpot_ms"] == summary["p50_tpot_ms"] == pytest.approx(100)
    assert summary["median_e2el_ms"] == pytest.approx(1050)
    assert summary["p99.9_e2el_ms"] == pytest.approx(1000 + 0.999 * 100)
    assert (summary["completed"], summary["failed"]) == (2, 1)
    assert summary["total_output_tokens"] == 8
    assert summary["output_throughput"] == 2.0
    assert summary["request_throughput"] == 0.5
    assert summary["max_concurrent_requests"] == 3  # the failed one was open too


def test_no_completed_request_leaves_nulls_and_no_nan() -> None:
    summary = summarise([Outcome("rejected", 0.0, 1.0, reason="full")], 1.0, {"ttft": 1.0})
    assert summary["mean_ttft_ms"] is None and summary["p99_itl_ms"] is None
    assert summary["request_goodput"] == 0.0
    json.dumps(summary, allow_nan=False)


def test_percentiles_only_where_wanted() -> None:
    summary = summarise([planted(0.0, 1.0, 2.0, tokens=2)], 1.0, {}, [90.0], ["ttft"])
    assert [key for key in summary if key.startswith("p90")] == ["p90_ttft_ms"]
    assert summary["mean_itl_ms"] == pytest.approx(1000)


def test_goodput_counts_requests_that_meet_every_goal() -> None:
    outcomes = [planted(0.0, 0.1, 1.1, tokens=11), planted(0.0, 0.1, 3.1, tokens=11), planted(0.0, 0.4, tokens=1)]
    assert summarise(outcomes, 1.0, parse_goals(["ttft:200", "tpot:150"]))["request_goodput"] == 1.0
    assert summarise(outcomes, 1.0, parse_goals(["tpot:150"]))["request_goodput"] == 2.0
    for bad in ("ttft", "ttft:", "ttft:-1", "ttft:nan", "itl:5"):
        with pytest.raises(ConfigError, match="--goodput"):
            parse_goals([bad])


def test_back_to_back_requests_do_not_overlap() -> None:
    outcomes = [planted(0.0, 1.0, tokens=1), planted(1.0, 2.0, tokens=1), planted(1.5, 1.75, tokens=1)]
    assert summarise(outcomes, 2.0, {})["max_concurrent_requests"] == 2


def test_counters_of_other_servers_and_positions_are_read() -> None:
    page = (
        "# TYPE vllm:spec_decode_num_drafts_total counter\n"
        'vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {drafts}\n'
        "# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter\n"
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="10"}} {late}\n'
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="2"}} {early}\n'
        "# TYPE echo_sched_verify_budget_tokens gauge\n"
        "echo_sched_verify_budget_tokens 7\n"
    )
    before = read_counters(page.format(drafts=10, early=5, late=1))
    after = read_counters(page.format(drafts=30, early=15, late=3))
    between = speculation_between(before, after)
    assert between["spec_decode_num_drafts"] == 20
    assert between["spec_decode_per_position_acceptance_rates"] == [0.5, 0.1]
    assert between["spec_decode_acceptance_length"] is None  # it does not count the steps without a draft
    assert between["budget_granted"] is None  # a gauge says nothing about a run
    assert set(speculation_between({}, {}).values()) == {None}


def test_random_arrivals_have_the_asked_rate_and_burstiness() -> None:
    for burstiness in (0.25, 1.0, 4.0):
        arrivals = random_arrivals(20_000, 5.0, burstiness, seed=1)
        gaps = np.diff(arrivals)
        assert arrivals[0] == 0.0
        assert gaps.mean() == pytest.approx(0.2, rel=0.05)
        assert (gaps.std() / gaps.mean()) ** 2 == pytest.approx(1 / burstiness, rel=0.1)
    assert not np.any(random_arrivals(3, math.inf, 1.0, seed=1))
    assert np.array_equal(random_arrivals(9, 1.0, 1.0, seed=2), random_arrivals(9, 1.0, 1.0, seed=2))


def test_a_trace_is_rescaled_to_a_rate_and_checked(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP\n2024-01-01 00:00:00\n2024-01-01 00:00:01\n2024-01-01 00:00:04\n")
    assert trace_arrivals(trace, 3).tolist() == [0.0, 1.0, 4.0]
    assert trace_arrivals(trace, 3, rate=4.0).tolist() == [0.0, 0.125, 0.5]
    with pytest.raises(DataError, match="holds 3 arrivals, but 4"):
        trace_arrivals(trace, 4)
    trace.write_text("TIMESTAMP\n2024-01-01 00:00:01\n2024-01-01 00:00:00\n")
    with pytest.raises(DataError, match="not in order"):
        trace_arrivals(trace, 2)
    trace.write_text("TIMESTAMP\nyesterday\n")
    with pytest.raises(DataError, match="'yesterday' is not a timestamp"):
        trace_arrivals(trace, 1)


def test_the_recorded_traces_are_read(shared_data: Path) -> None:
    arrivals = trace_arrivals(shared_data / "traces/AzureLLMInferenceTrace_code.csv", 3)
    assert arrivals.tolist() == pytest.approx([0.0, 0.052, 0.098189])


def test_extra_fields_join_objects_and_replace_values() -> None:
    assert merged({"a": {"x": 1}, "b": 2}, {"a": {"y": 3}, "b": 4}) == {"a": {"x": 1, "y": 3}, "b": 4}
