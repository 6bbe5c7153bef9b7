"""Makes a folder that `from_pretrained` can open of a GGUF file.

What comes out of a quantised GGUF file are its quantised weights, dequantised: never the model they were made from.
torch and transformers are imported only where a file is converted.
"""

import json
from pathlib import Path
from typing import Any

from echo_sched.errors import ModelError
from echo_sched.notice import say

SOURCE_FILE = "SOURCE.json"


def convert(gguf: Path, folder: Path, source: dict[str, str]) -> None:
    """Write `gguf` as a safetensors folder, its tokenizer and SOURCE.json included. Raises ModelError."""
    say(f"converting {gguf.name} to safetensors (once; some 20 s for the default model)")
    try:
        note = _convert_with_transformers(gguf, folder)
    except Exception as error:  # whatever a third party's reader makes of a file it cannot read
        raise ModelError(f"cannot convert {gguf.name}: {reason_of(error)}") from error
    (folder / SOURCE_FILE).write_text(json.dumps({"note": note, **source}, indent=2) + "\n")


def source_note(folder: str) -> str | None:
    """What the weights in a converted folder are, in one line; None for any other folder."""
    path = Path(folder) / SOURCE_FILE
    return str(json.loads(path.read_text())["note"]) if path.is_file() else None


def reason_of(error: Exception) -> str:
    """The first line of what a third party says, for a message of one line."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _convert_with_transformers(gguf: Path, folder: Path) -> str:
    import torch
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    matrices = {tensor.tensor_type.name for tensor in GGUFReader(gguf).tensors if len(tensor.shape) > 1}
    # bfloat16 rounds dequantised values by 0.14 % (rms), far less than quantising did; plain floats are kept exactly
    dtype = torch.float32 if matrices <= {"F32", "F16"} else torch.bfloat16
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=dtype,
        quantization_config=GgufConfig(dequantize=True),  # else the model refuses to be saved
        output_loading_info=True,
    )
    model, loading = loaded
    if lost := sorted(loading["missing_keys"]) + sorted(loading["mismatched_keys"]):
        raise ModelError(f"the file lacks weights of the model, {lost[0]} first")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    stored = ", ".join(sorted(matrices))
    return f"{gguf.name}: the file's own weights ({stored}), dequantised to {str(dtype).removeprefix('torch.')}"
