"""EAGLE-3 heads on disk: config.json and tensors of either public layout in, the original layout out.

Everything is checked against the target at load: names, shapes, vocabularies. Knows nothing of requests, caches or
drafting.
"""

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from echo_sched.engine.draft.eagle3.head import Eagle3Config, Eagle3Head
from echo_sched.engine.draft.eagle3.layouts import TargetShape, head_config, public_config, read_head_config
from echo_sched.errors import ModelError

# What public files carry beside the head: a mask that d2t implies, parts of the target, tables that are recomputed.
_IGNORED = ("t2d", "verifier_", "rotary_emb.", "mask_hidden")
_FINGERPRINT_ROWS = 4

Tensors = dict[str, Tensor]


def load_head(
    folder: str | Path,
    target: TargetShape,
    *,
    aux_layers: tuple[int, ...] | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> Eagle3Head:
    """Read a head for this target, in evaluation mode. `aux_layers` overrides what the checkpoint says.

    Raises ModelError naming whatever does not fit: files, shapes, vocabularies, the target.
    """
    path = Path(folder)
    raw = read_head_config(path)
    tensors = _read_tensors(path)
    fc = tensors.get("fc.weight")
    config = head_config(
        path,
        raw,
        target,
        aux_layers,
        fc_width=None if fc is None else fc.shape[-1],
        own_embeddings="embed_tokens.weight" in tensors,
    )
    with torch.device("meta"):
        head = Eagle3Head(config)
    _check_tensors(path, tensors, head.state_dict())
    _check_vocabulary(path, tensors, config)
    head.load_state_dict({name: tensors[name] for name in head.state_dict()}, assign=True)
    head = head.to(dtype=dtype, device=device)
    return head.eval().requires_grad_(False)


def save_head(head: Eagle3Head, folder: str | Path, *, num_target_layers: int, dtype: torch.dtype) -> None:
    """Write the original public layout, which vLLM and SGLang read too. Each file appears whole or not at all."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    target_to_draft = torch.zeros(head.config.vocab_size, dtype=torch.bool)
    target_to_draft[head.target_ids.cpu()] = True
    tensors = {
        name: tensor.detach().to("cpu", tensor.dtype if name == "d2t" else dtype).contiguous()
        for name, tensor in head.state_dict().items()
    }
    # safetensors' own writer gives the file to its owner alone
    (path / "model.safetensors.part").write_bytes(save({**tensors, "t2d": target_to_draft}, metadata={"format": "pt"}))
    os.replace(path / "model.safetensors.part", path / "model.safetensors")
    text = json.dumps(public_config(head.config, num_target_layers, dtype), indent=2) + "\n"
    (path / "config.json.part").write_text(text, encoding="utf-8")
    os.replace(path / "config.json.part", path / "config.json")


def fingerprint(head: Eagle3Head) -> str:
    """Identity of a head, the same in every dtype: its shape and a few rows of each matrix, rounded to bfloat16."""
    digest = hashlib.sha256(json.dumps(asdict(head.config), sort_keys=True).encode())
    for _, tensor in sorted(head.state_dict().items()):
        if tensor.dim() == 2:
            rows = tensor[:: max(1, tensor.shape[0] // _FINGERPRINT_ROWS)]
            digest.update(rows.to(torch.bfloat16).float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def _read_tensors(path: Path) -> Tensors:
    """All weights of the folder under the original layout's names."""
    files = sorted(path.glob("*.safetensors")) or sorted(path.glob("pytorch_model*.bin"))
    if not files:
        raise ModelError(f"{path}: neither *.safetensors nor pytorch_model.bin is there")
    tensors: Tensors = {}
    for file in files:
        try:
            if file.suffix == ".safetensors":
                tensors |= load_file(file)
            else:
                tensors |= torch.load(file, map_location="cpu", weights_only=True)
        except (OSError, SafetensorError, RuntimeError, UnpicklingError, EOFError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise ModelError(f"cannot read the draft model's {file}: {reason}") from error
    renamed = {_original_name(name): tensor for name, tensor in tensors.items()}
    return {name: t for name, t in renamed.items() if name == "t2d" or not any(part in name for part in _IGNORED)}


def _original_name(name: str) -> str:
    return name.removeprefix("model.").replace("layers.0.", "midlayer.", 1)


def _check_tensors(path: Path, tensors: Tensors, expected: Tensors) -> None:
    missing = sorted(set(expected) - set(tensors) - {"d2t"})
    if missing:
        raise ModelError(f"{path}: the head lacks {', '.join(missing)}")
    unknown = sorted(set(tensors) - set(expected) - {"t2d"})
    if unknown:
        raise ModelError(f"{path}: the head has {', '.join(unknown)}, which this engine does not know")
    for name in sorted(set(expected) & set(tensors)):
        if tensors[name].shape != expected[name].shape:
            found, wanted = list(tensors[name].shape), list(expected[name].shape)
            raise ModelError(f"{path}: {name} has shape {found}; config.json and the target make it {wanted}")


def _check_vocabulary(path: Path, tensors: Tensors, config: Eagle3Config) -> None:
    """Every draft token stands for one target token of its own. Without d2t the vocabularies must be one."""
    if "d2t" not in tensors:
        if config.draft_vocab_size != config.vocab_size:
            raise ModelError(
                f"{path}: the head has {config.draft_vocab_size} draft tokens for {config.vocab_size} tokens of the "
                "target and no d2t that maps them"
            )
        tensors["d2t"] = torch.zeros(config.vocab_size, dtype=torch.int64)
    tensors["d2t"] = tensors["d2t"].to(torch.int64)
    ids = torch.arange(config.draft_vocab_size) + tensors["d2t"]
    if int(ids.min()) < 0 or int(ids.max()) >= config.vocab_size:
        raise ModelError(f"{path}: d2t points outside the target's vocabulary of {config.vocab_size} tokens")
    if len(ids.unique()) != len(ids):
        raise ModelError(f"{path}: d2t gives two draft tokens the same target token; it must hold offsets")
    if "t2d" in tensors and sorted(ids.tolist()) != tensors["t2d"].nonzero().flatten().tolist():
        raise ModelError(f"{path}: d2t and t2d disagree about the draft vocabulary")
