"""Checkpoints in every form that is read, opened as the server opens them; code that comes with one is never run."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from echo_sched.engine import model_config, models
from echo_sched.engine.forward import Target
from echo_sched.engine.opening import open_target
from echo_sched.errors import ModelError
from echo_sched.fetch import resolve_model
from tests.loops import CPU
from tests.rows import Driver, chunk, plain_rows, random_tree
from tests.tiny_gguf import write_tiny_gguf
from tests.tiny_models import random_prompt, save_tiny_model

FAMILIES = ("llama, tied", "qwen3_moe", "gemma2", "opt")


def opened(path: str, dtype: str = "auto") -> Target:
    return open_target(
        path,
        dtype=dtype,
        numerics="fast",
        device=CPU,
        num_slots=2,
        max_model_len=64,
        tail_len=16,
        kv_limit_gib=None,
    )


def check_rows(target: Target, path: str) -> None:
    """A chunk and a tree behind it, against what transformers loads from the same place."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=target.facts.dtype)
    driver, prompt, tree = Driver(target, "x"), chunk(random_prompt(30)), random_tree(6, 0)
    driver.forward({"x": prompt})
    driver.commit({"x": (prompt, range(30))})
    logits = driver.forward({"x": tree})["x"]
    torch.testing.assert_close(logits, plain_rows(model, driver.committed["x"], tree), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("shard_size", [None, "20KB"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_of_safetensors_opens(family: str, shard_size: str | None, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, family, **({} if shard_size is None else {"max_shard_size": shard_size}))
    shards = len(list(tmp_path.glob("model*.safetensors")))
    assert shards == 1 if shard_size is None else shards > 3
    assert (tmp_path / "model.safetensors.index.json").is_file() == (shards > 1)
    check_rows(opened(resolve_model(str(tmp_path))), str(tmp_path))


def test_a_shard_that_is_missing_is_one_clear_line(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, max_shard_size="20KB")
    sorted(tmp_path.glob("model-*.safetensors"))[1].unlink()
    with pytest.raises(ModelError, match="cannot load the model") as caught:
        opened(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_local_path_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tiny_model(tmp_path / "saved")
    monkeypatch.chdir(tmp_path)
    check_rows(opened(resolve_model("saved")), "saved")


def test_a_gguf_file_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHO_CACHE", str(tmp_path / "cache"))
    write_tiny_gguf(tmp_path / "Tiny.gguf", "F32")
    folder = resolve_model(str(tmp_path / "Tiny.gguf"))
    check_rows(opened(folder), folder)


@pytest.mark.parametrize(("dtype", "loaded"), [("auto", torch.bfloat16), ("float64", torch.float64)])
def test_the_checkpoints_precision_serves_unless_another_is_named(
    dtype: str, loaded: torch.dtype, tmp_path: Path
) -> None:
    save_tiny_model(tmp_path, "qwen3_moe", torch.bfloat16)  # whose default kernels refuse float64
    assert opened(str(tmp_path), dtype).model.dtype == loaded


def with_code(folder: Path, model_type: str) -> str:
    """A saved tiny Llama that says it brings its own code."""
    save_tiny_model(folder)
    config = json.loads((folder / "config.json").read_text())
    code = {"AutoConfig": "configuration_mine.MyConfig", "AutoModelForCausalLM": "modeling_mine.MyModel"}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": model_type, "auto_map": code}))
    for module in ("configuration_mine", "modeling_mine"):
        (folder / f"{module}.py").write_text("raise AssertionError('code from a model folder was run')")
    return str(folder)


def test_code_that_a_model_brings_along_is_never_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ModelError, match=r"my_model needs the Python code in its folder .* never run") as caught:
        model_config.read_config(with_code(tmp_path / "unknown", "my_model"))
    assert "\n" not in str(caught.value)
    known = with_code(tmp_path / "known", "llama")
    model_config.check_config(model_config.read_config(known))
    assert "is not run; transformers' own llama is" in caplog.text
    assert models.load_weights(known, torch.float32, CPU).config.model_type == "llama"
    models.load_tokenizer(known)
