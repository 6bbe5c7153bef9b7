"""What a person reads when the service starts: the facts of the engine, a GPU that lies idle, and a request to try."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from server.engine_thread import EngineLoop

SAMPLE_BODY = '{"text": "The capital of France is", "sampling_params": {"max_new_tokens": 32, "temperature": 0}}'


def facts(loop: EngineLoop) -> Iterator[str]:
    """One line per fact of the loaded engine."""
    yield f"model: {loop.model_path} (vocabulary {loop.vocab_size}, context {loop.max_model_len} tokens)"
    for name, value in loop.info().items():
        words = name.replace("_", " ")
        yield f"{words}: {value / 2**30:.2f} GiB" if name.endswith("_bytes") else f"{words}: {value}"


def unused_gpu() -> str | None:
    """A warning when the machine has an NVIDIA GPU that the installed torch cannot use."""
    import torch  # seconds; by now the engine has paid for it

    if torch.cuda.is_available() or not (Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi")):
        return None
    return (
        f"this machine has a GPU, but the installed torch {torch.__version__} cannot use it; "
        "the README says how to choose a torch build"
    )


def curl(url: str, needs_key: bool) -> str:
    key = " -H 'Authorization: Bearer KEY'" if needs_key else ""
    return f"curl -s {url}/generate -H 'Content-Type: application/json'{key} -d '{SAMPLE_BODY}'"
