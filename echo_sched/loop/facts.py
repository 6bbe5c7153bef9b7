"""What is running, in words and numbers: for the start-up log and the server's info route."""

from typing import Any

import torch

from echo_sched.config import EngineConfig
from echo_sched.engine.forward import Target
from echo_sched.fetch import source_note
from echo_sched.scheduler.profile import Profile


def describe(config: EngineConfig, target: Target, profile: Profile) -> dict[str, Any]:
    """JSON-able facts of a loaded engine."""
    return {
        "torch": torch.__version__,
        "device": str(target.device),
        "num_threads": torch.get_num_threads(),
        "model": target.facts.path,
        "fingerprint": target.facts.fingerprint,
        "weights": source_note(target.facts.path) or "as stored in the model's folder",
        "dtype": str(target.facts.dtype).removeprefix("torch."),
        "numerics": target.numerics,
        "kernels": target.kernels,
        "drafter": config.drafter,
        "draft_model": config.draft_model,
        "policy": config.policy,
        "k_max": config.k_max,
        "profile": config.profile or profile.provenance.get("source", "shipped with the head"),
        "checkpoints": [checkpoint.depth for checkpoint in profile.checkpoints],
        "target_depth": profile.target_depth,
        "kv_slots": target.kv.num_slots,
        "kv_slot_len": target.kv.max_len,
        "kv_bytes": target.kv.num_bytes,
    }
