"""What is loaded and what it says of itself: for people, for the server and for profiles. Runs nothing."""

from typing import Any

import torch

from echo_sched.config import EngineConfig
from echo_sched.convert import source_note
from echo_sched.engine.draft import Drafter
from echo_sched.engine.forward import Target
from echo_sched.scheduler.profile import Identity, Profile


class Loaded:
    """A target and a drafter with their profile, under the settings in force."""

    def __init__(self, config: EngineConfig, target: Target, drafter: Drafter, profile: Profile) -> None:
        self.config = config
        self.target = target
        self.drafter = drafter
        self.profile = profile

    @property
    def tokenizer(self) -> Any:
        return self.target.tokenizer

    @property
    def model_path(self) -> str:
        return self.target.facts.path

    @property
    def vocab_size(self) -> int:
        return self.target.facts.vocab_size

    @property
    def max_model_len(self) -> int:
        return self.target.facts.max_model_len

    @property
    def model_identity(self) -> Identity:
        return Identity(self.config.model, self.target.facts.fingerprint)

    @property
    def drafter_identity(self) -> Identity:
        return Identity(self.drafter.name, self.drafter.fingerprint)

    def info(self) -> dict[str, Any]:
        """JSON-able facts of a loaded engine."""
        config, target, profile = self.config, self.target, self.profile
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
