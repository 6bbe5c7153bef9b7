"""What a person reads when the service starts, and how flags and the environment become settings."""

import argparse
from pathlib import Path

import pytest
import torch

from server.settings import API_KEY_VARIABLE, add_server_flags, server_settings
from server.startup import curl, facts, unused_gpu
from tests.server_harness import FakeLoop


def settings_of(*flags: str) -> dict[str, object]:
    parser = argparse.ArgumentParser()
    add_server_flags(parser)
    return server_settings(parser.parse_args(flags)).model_dump()


def test_the_facts_name_the_model_and_everything_the_engine_reports() -> None:
    class Sized(FakeLoop):
        def info(self) -> dict[str, object]:
            return {**super().info(), "kv_bytes": 3 * 2**29}

    text = "\n".join(facts(Sized()))
    for fact in ("/models/fake", "torch: 2.13.0", "device: cpu", "kv slots: 2", "kv bytes: 1.50 GiB"):
        assert fact in text


def test_the_request_to_try_is_one_that_works() -> None:
    assert "http://127.0.0.1:8000/generate" in curl("http://127.0.0.1:8000", needs_key=False)
    assert "Bearer" not in curl("http://x", needs_key=False) and "Bearer" in curl("http://x", needs_key=True)


@pytest.mark.skipif(torch.cuda.is_available() or Path("/dev/nvidia0").exists(), reason="a GPU is really there")
def test_a_gpu_that_torch_cannot_use_is_worth_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert unused_gpu() is None
    tool = tmp_path / "nvidia-smi"
    tool.touch()
    tool.chmod(0o755)
    warning = unused_gpu()
    assert warning is not None and torch.__version__ in warning


def test_the_key_comes_from_the_flag_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(API_KEY_VARIABLE, raising=False)
    assert settings_of()["api_key"] is None
    monkeypatch.setenv(API_KEY_VARIABLE, "from-env")
    assert "from-env" not in str(settings_of()), "a key never shows where settings are printed"
    assert settings_of()["api_key"].get_secret_value() == "from-env"  # type: ignore[attr-defined]
    assert settings_of("--api-key", "from-flag")["api_key"].get_secret_value() == "from-flag"  # type: ignore[attr-defined]


def test_flags_are_converted_and_defaults_kept() -> None:
    settings = settings_of("--port", "9000", "--request-timeout", "2.5")
    assert (settings["port"], settings["request_timeout"]) == (9000, 2.5)
    assert (settings["host"], settings["max_queued_requests"], settings["drain_timeout"]) == ("127.0.0.1", 256, 30.0)
