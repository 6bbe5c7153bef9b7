"""Start, disconnects, failures, draining, exit codes, metrics: what happens around requests. The engine is scripted."""

import json
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from echo_sched.errors import ConfigError, ModelError
from server.__main__ import bind, main, serve
from server.settings import ServerSettings
from tests.server_harness import LETTERS, POISON, FakeLoop, Running, serving, until

ROOT = Path(__file__).resolve().parents[1]
LONG = {"text": "a", "sampling_params": {"max_new_tokens": 4000}}


def long_loop(slots: int = 2) -> FakeLoop:
    return FakeLoop(slots, pace=0.01, max_model_len=4096)


def post_apart(server: Running, body: dict[str, Any], answers: list[httpx.Response]) -> threading.Thread:
    """POST /generate in a thread of its own."""
    thread = threading.Thread(target=lambda: answers.append(server.client.post("/generate", json=body, timeout=30)))
    thread.start()
    return thread


# -- clients that go away --


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_its_slot_within_a_step_and_nobody_notices(stream: bool) -> None:
    with serving(long_loop()) as server:
        answers: list[httpx.Response] = []
        neighbour = post_apart(server, {"text": "b", "sampling_params": {"max_new_tokens": 200}}, answers)
        body = json.dumps({**LONG, "rid": "leaver", "stream": stream}).encode()
        head = f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        head += "Content-Type: application/json\r\n\r\n"
        with socket.create_connection(server.url.removeprefix("http://").split(":")) as connection:
            connection.sendall(head.encode() + body)
            until(lambda: "leaver" in server.loop.requests and server.loop.num_running == 2)
            if stream:
                assert b"200 OK" in connection.recv(1000)
        left_at = server.loop.num_steps
        until(lambda: "leaver" in server.loop.cancelled_at)
        # One step may be under way while the news travels, another while the cancelling waits for its end.
        assert server.loop.cancelled_at["leaver"] - left_at <= 2
        neighbour.join()
        assert len(answers[0].json()["output_ids"]) == 200


def test_a_client_that_leaves_the_queue_is_forgotten() -> None:
    loop = long_loop(slots=1)
    with serving(loop) as server:
        with server.client.stream("POST", "/generate", json={**LONG, "stream": True}):
            with pytest.raises(httpx.ReadTimeout):
                server.client.post("/generate", json={"text": "b", "rid": "waiter"}, timeout=0.2)
            until(lambda: "waiter" in loop.cancelled_at)
            assert loop.num_running == 1
        until(lambda: not loop.requests)


def test_what_a_list_still_runs_is_cancelled_with_it() -> None:
    with serving(long_loop(slots=2)) as server:
        with pytest.raises(httpx.ReadTimeout):
            server.client.post("/generate", json={**LONG, "text": ["a", "b", "c"]}, timeout=0.2)
        until(lambda: len(server.loop.cancelled_at) == 3)  # they may arrive after their client has gone
        assert not server.loop.requests


# -- start --


def test_while_the_model_loads_the_server_is_alive_but_not_ready() -> None:
    loop, loaded = FakeLoop(), threading.Event()

    def load() -> FakeLoop:
        loaded.wait()
        return loop

    with serving(loop, load=load, wait=False) as server:
        assert server.client.get("/health").status_code == 200
        for path in ("/ready", "/health_generate", "/get_server_info", "/v1/models", "/get_model_info"):
            assert server.client.get(path).status_code == 503
        refused = server.client.post("/generate", json={"text": "a"})
        assert refused.status_code == 503 and "loading" in refused.json()["error"]["message"]
        assert "Retry-After" in refused.headers
        loaded.set()
        until(lambda: server.client.get("/ready").status_code == 200)
        assert server.client.get("/health_generate").status_code == 200
        assert server.client.post("/generate", json={"text": "a"}).status_code == 200


def test_the_facts_are_there_once_it_is_loaded() -> None:
    with serving() as server:
        server.client.post("/generate", json={"text": "a", "sampling_params": {"max_new_tokens": 4}})
        info = server.client.get("/get_server_info").json()
        models = server.client.get("/v1/models").json()
        assert server.client.get("/get_model_info").json()["model_path"] == "/models/fake"
        assert server.client.get("/version").json()["version"]
        assert server.client.get("/openapi.json").status_code == 200
    assert info["model_path"] == "/models/fake"
    assert info["settings"]["k_max"] == 32 and info["settings"]["max_queued_requests"] == 256
    assert info["profile"] == {"name": "built-in"} and info["engine"]["device"] == "cpu"
    health = {"state": "ready", "stalled": False, "num_requests_running": 0, "num_requests_waiting": 0}
    assert health.items() <= info["scheduler"].items()
    assert info["last_step"]["step"] == 2 and info["last_step"]["truncated"] == {"1": 1}
    assert not {"gate_readings", "node_readings", "offers"} & set(info["last_step"])
    assert info["internal_states"][0]["avg_spec_accept_length"] == 2.0
    assert models["data"][0]["id"] == "smollm2-135m-instruct" and models["data"][0]["max_model_len"] == 64


# -- failure --


def test_a_failing_engine_fails_every_open_request_with_a_reason() -> None:
    loop = long_loop(slots=3)
    with serving(loop) as server:
        answers: list[httpx.Response] = []
        whole = post_apart(server, LONG, answers)
        with server.client.stream("POST", "/generate", json={**LONG, "stream": True}) as streamed:
            lines = streamed.iter_lines()
            next(lines)
            until(lambda: loop.num_running == 2)
            post_apart(server, {"input_ids": [POISON], "stream": True}, answers).join()
            rest = [line for line in lines if line]
        whole.join()
        assert [answer.status_code for answer in answers] == [500, 500]
        for answer in answers:
            assert "RuntimeError: the step broke" in answer.json()["error"]["message"]
        assert "the step broke" in json.loads(rest[-2].removeprefix("data: "))["error"]["message"]
        assert rest[-1] == "data: [DONE]"
        assert server.client.get("/health").status_code == 503
        assert server.client.get("/ready").status_code == 503
        refused = server.client.post("/generate", json={"text": "a"})
        assert refused.status_code == 503 and "failed" in refused.json()["error"]["message"]


def test_a_stalled_engine_is_reported() -> None:
    loop = FakeLoop()
    with serving(loop, stall_timeout=0.05) as server:
        loop.unblocked.clear()
        answers: list[httpx.Response] = []
        caller = post_apart(server, {"text": "a"}, answers)
        until(lambda: server.client.get("/health").status_code == 503)
        assert server.client.get("/ready").json() == {"status": "stalled"}
        loop.unblocked.set()
        caller.join()
        assert answers[0].status_code == 200
        assert server.client.get("/health").status_code == 200


# -- drain --


def test_draining_finishes_what_was_accepted_and_refuses_the_rest() -> None:
    loop = FakeLoop(slots=1, pace=0.01)
    with serving(loop) as server:
        answers: list[httpx.Response] = []
        body = {"text": ["a", "b"], "sampling_params": {"max_new_tokens": 26}}
        caller = post_apart(server, body, answers)
        until(lambda: loop.num_running == 1)
        server.bridge.request_drain()
        until(lambda: server.client.get("/ready").status_code == 503)
        assert server.client.get("/health").status_code == 200
        refused = server.client.post("/generate", json={"text": "a"})
        assert refused.status_code == 503 and "shutting down" in refused.json()["error"]["message"]
        caller.join()
        assert [result["text"] for result in answers[0].json()] == [LETTERS, LETTERS]
        until(lambda: server.bridge.ended)


def test_what_outlives_the_drain_timeout_ends_with_a_reason() -> None:
    with serving(long_loop(), drain_timeout=0.1) as server:
        answers: list[httpx.Response] = []
        caller = post_apart(server, LONG, answers)
        until(lambda: server.loop.num_running == 1)
        server.bridge.request_drain()
        caller.join()
        reason = answers[0].json()["meta_info"]["finish_reason"]
        assert reason["type"] == "abort" and "shutting down" in reason["message"]
        until(lambda: server.bridge.ended)


# -- the process --

SCRIPT = """
import sys, socket
sys.path[:0] = [{tests!r}, {root!r}]
from server.__main__ import bind, serve
from server.settings import ServerSettings
from tests.server_harness import FakeLoop
listener = bind("127.0.0.1", 0)
print(listener.getsockname()[1], flush=True)
sys.exit(serve(lambda: FakeLoop(pace=0.02, max_model_len=4096), ServerSettings(), listener))
"""


@pytest.fixture
def process() -> Any:
    """A server process around the scripted engine, and a client of it."""
    script = SCRIPT.format(tests=str(ROOT / "tests"), root=str(ROOT))
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    url = f"http://127.0.0.1:{child.stdout.readline().strip()}"
    with child, httpx.Client(base_url=url, timeout=30) as client:
        until(lambda: client.get("/ready").status_code == 200)
        yield child, client
        child.kill()


def test_sigterm_finishes_what_runs_and_exits_zero(process: Any) -> None:
    child, client = process
    body = {"text": "a", "stream": True, "sampling_params": {"max_new_tokens": 60}}
    with client.stream("POST", "/generate", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        child.send_signal(signal.SIGTERM)
        until(lambda: client.get("/ready").status_code == 503)
        rest = [line for line in lines if line]
    assert len(json.loads(rest[-2].removeprefix("data: "))["output_ids"]) == 60
    assert child.wait(10) == 0
    assert child.stderr.read() == ""


def test_a_second_signal_stops_at_once(process: Any) -> None:
    child, client = process
    with client.stream("POST", "/generate", json={**LONG, "stream": True}) as response:
        lines = response.iter_lines()
        next(lines)
        child.send_signal(signal.SIGTERM)
        until(lambda: client.get("/ready").status_code == 503)
        child.send_signal(signal.SIGTERM)
        assert child.wait(5) == 128 + signal.SIGTERM


def test_a_failed_engine_answers_and_exits_non_zero(process: Any) -> None:
    child, client = process
    answer = client.post("/generate", json={"input_ids": [POISON]})
    assert answer.status_code == 500 and "the step broke" in answer.json()["error"]["message"]
    assert child.wait(10) == 1


def test_a_model_that_cannot_be_loaded_ends_the_server_with_its_error() -> None:
    def load() -> FakeLoop:
        raise ModelError("no such model: nowhere")

    with pytest.raises(ModelError, match="nowhere"):
        serve(load, ServerSettings(), bind("127.0.0.1", 0))


def test_a_port_in_use_is_one_line_and_needs_no_model() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "server", "--port", str(port), "--model", "/no/such/model"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1 and f":{port}" in result.stderr and "in use" in result.stderr


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--port", "70000"], "--port"),
        (["--max-queued-requests", "-1"], "--max-queued-requests"),
        (["--drain-timeout", "nan"], "--drain-timeout"),
        (["--k-max", "-1"], "--k-max"),
        (["--host", "not an address"], "not an address"),
    ],
)
def test_an_impossible_flag_is_one_line_that_names_it(flags: list[str], named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        main(flags)
    assert "\n" not in str(caught.value)


# -- metrics --


def test_metrics_add_up() -> None:
    with serving(FakeLoop(slots=1)) as server:
        server.client.post("/generate", json={"text": ["a", "b"], "sampling_params": {"max_new_tokens": 6}})
        text = server.client.get("/metrics").text
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    expected = {
        "num_requests_running": 0,
        "num_requests_waiting": 0,
        "kv_slots_used": 0,
        "generation_tokens_total": 12,
        'request_success_total{finished_reason="length"}': 2,
        "time_to_first_token_seconds_count": 2,
        "inter_token_latency_seconds_count": 4,
        "e2e_request_latency_seconds_count": 2,
        "queue_time_seconds_count": 2,
        "verify_steps_total": 6,
        "verify_emitted_tokens_total": 12,
        "spec_decode_num_drafts_total": 6,
        "spec_decode_num_draft_tokens_total": 12,
        "spec_decode_num_accepted_tokens_total": 6,
        'spec_decode_num_accepted_tokens_per_pos_total{position="0"}': 6,
        "verify_budget_tokens_sum": 48,
        "verify_used_tokens_sum": 12,
        'truncated_total{depth="1"}': 6,
        'deepened_total{depth="5"}': 6,
        "widened_nodes_total": 6,
        "drafted_nodes_total": 24,
        'pruned_nodes_total{stage="draft"}': 12,
        'pruned_nodes_total{stage="verify"}': 0,
        "expected_accepted_nodes_total": 3,
        "steps_without_draft_total": 0,
        "depth_histogram_sum": 6,
        'step_seconds_count{phase="draft"}': 6,
        'gate_auc{depth="4"}': 0.7,
        'gate_calibration_error{depth="4"}': 0.05,
        'gate_readings{depth="4"}': 200,
        'gate_drifted{depth="4"}': 1,
        'gate_threshold{depth="4"}': 0.12,
        'acceptance_shift{depth="1"}': -0.25,
        "explored_steps_total": 0,
        "k_max_changes_total": 2,
    }
    assert {name: float(samples[f"echo_sched_{name}"]) for name in expected} == expected
    assert float(samples["echo_sched_last_step_timestamp_seconds"]) > 0
    assert 1.0 < float(samples["echo_sched_cost_model_error_ratio"]) < 2.0  # steps take twice as long as expected
    assert any(name.startswith("echo_sched_build_info{") for name in samples)


def test_a_metric_can_never_fail_a_request(caplog: pytest.LogCaptureFixture) -> None:
    class Miscounting(FakeLoop):
        def step(self) -> Any:
            events = super().step()
            assert self.last_record is not None
            object.__setattr__(self.last_record, "num_emitted", "many")
            for event in events:
                event.request.stats.accepted_lengths[-1] += 1.5  # type: ignore[assignment]
            return events

    with serving(Miscounting()) as server:
        body = {"text": "a", "sampling_params": {"max_new_tokens": 4}}
        assert server.client.post("/generate", json=body).json()["text"] == "abcd"
        assert server.client.get("/metrics").status_code == 200
    assert "a metric could not be recorded" in caplog.text


def test_what_breaks_inside_a_stream_is_told_there_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> dict[str, Any]:
        raise ArithmeticError("planted")

    monkeypatch.setattr("server.replies.generated", broken)
    with serving(FakeLoop()) as server:
        answer = server.client.post("/generate", json={"text": "a", "stream": True})
    assert "internal error" in answer.text and answer.text.endswith("data: [DONE]\n\n")
    assert "planted" not in answer.text and "planted" in caplog.text
