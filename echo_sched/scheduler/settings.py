"""What a user may decide about scheduling. Knows no policy, and no config but by the names of its settings."""

from dataclasses import dataclass
from typing import Literal

from echo_sched.errors import ConfigError
from echo_sched.scheduler.gate import GateScope
from echo_sched.scheduler.plan import WidenScope


@dataclass(frozen=True)
class PolicySettings:
    """Names, values and defaults are those of the engine's settings.

    Raises ConfigError, naming the setting, for a number out of range.
    """

    policy: Literal["off", "static", "dynamic", "echo", "goodput"] = "echo"
    k_max: int = 32
    k_max_rule: Literal["fixed", "auto"] = "fixed"
    price: Literal["on", "off"] = "on"
    max_depth: int = 8
    branching: int = 4
    gate: Literal["sparse", "dense", "none", "random"] = "sparse"
    gate_scope: GateScope = "request"
    thresholds: Literal["per-depth", "single"] = "per-depth"
    transfer: Literal["on", "off"] = "on"
    widen: Literal["on", "off"] = "on"
    widen_scope: WidenScope = "all"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, minimum in (("k_max", 0), ("max_depth", 1), ("branching", 1), ("seed", 0)):
            if getattr(self, name) < minimum:
                raise ConfigError(f"{name} must be at least {minimum}, got {getattr(self, name)}")

    @staticmethod
    def of(config: object) -> "PolicySettings":
        """The part of a config that the scheduler reads."""
        return PolicySettings(**{name: getattr(config, name) for name in PolicySettings.__dataclass_fields__})
