"""`python -m server` as a person runs it: a real process, a real model, from the first line of its log to SIGTERM."""

import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[1]


def test_the_process_loads_says_where_it_listens_answers_and_leaves_on_sigterm(model_folder: Path) -> None:
    sizes = ["--max-model-len", "64", "--max-batch-size", "2"]
    command = [sys.executable, "-m", "server", "--port", "0", "--model", str(model_folder), *sizes]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    give_up = threading.Timer(120, process.kill)  # a server that hangs ends its log, and so the loop below
    give_up.start()
    try:
        assert process.stderr is not None
        log = ""
        for line in process.stderr:
            log += line
            if ready := re.search(r"ready on (http://\S+);", line):
                break
        assert ready, log
        assert f"model: {model_folder} (vocabulary 160, context 64 tokens)" in log
        body = {"text": "w1 w2 w3 w1 w2 w3", "sampling_params": {"max_new_tokens": 8, "ignore_eos": True}}
        answer = httpx.post(f"{ready[1]}/generate", json=body, timeout=60, trust_env=False)
        assert answer.status_code == 200, answer.text
        assert len(answer.json()["output_ids"]) == 8
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        assert process.wait() == 0, rest
        assert rest.splitlines()[-1].endswith("stopped")
    finally:
        give_up.cancel()
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()
