"""What a user may decide about scheduling. Knows no policy, and no config but by the names of its settings."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from echo_sched.errors import ConfigError
from echo_sched.scheduler.gate import GateScope
from echo_sched.scheduler.plan import WidenScope

DEFAULT_SHAPES = "1=1.1.1.1.1/4=1.1.1/8=1.1/32="

Shapes = tuple[tuple[int, tuple[int, ...]], ...]  # (smallest batch, children per node at each depth), batches ascending


@dataclass(frozen=True)
class PolicySettings:
    """Names, values and defaults are those of the engine's settings.

    Raises ConfigError, naming the setting, for a number out of range.
    """

    policy: Literal["off", "static", "table", "dynamic", "echo", "goodput"] = "echo"
    k_max: int = 32
    k_max_rule: Literal["fixed", "auto"] = "auto"
    price: Literal["on", "off"] = "on"
    live_costs: Literal["on", "off"] = "on"
    live_acceptance: Literal["on", "off"] = "on"
    max_depth: int = 8
    branching: int = 4
    gate: Literal["sparse", "dense", "none", "random"] = "sparse"
    gate_scope: GateScope = "request"
    thresholds: Literal["per-depth", "single"] = "per-depth"
    transfer: Literal["on", "off"] = "on"
    widen: Literal["on", "off"] = "on"
    widen_scope: WidenScope = "all"
    shapes: str = DEFAULT_SHAPES
    node_floor: int = 0
    max_step_stretch: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        lowest = {"k_max": 0, "max_depth": 1, "branching": 1, "node_floor": 0, "max_step_stretch": 0, "seed": 0}
        for name, minimum in lowest.items():
            if (getattr(self, name) or 0) < minimum:
                raise ConfigError(f"{name} must be at least {minimum}, got {getattr(self, name)}")
        parse_shapes(self.shapes)

    @staticmethod
    def of(config: object) -> "PolicySettings":
        """The part of a config that the scheduler reads."""
        return PolicySettings(**{name: getattr(config, name) for name in PolicySettings.__dataclass_fields__})


def parse_shapes(text: str) -> Shapes:
    """`1=3.2.1/8=1.1/33=` -> from 1 request on 3, 2 and 1 children per node, from 8 on two levels of one, from 33 none.

    Raises ConfigError.
    """
    try:
        shapes = tuple(
            (int(batch), tuple(int(count) for count in children.split(".") if children))
            for batch, children in (entry.split("=") for entry in text.split("/"))
        )
    except ValueError:
        raise ConfigError(f"shapes must look like {DEFAULT_SHAPES}, got {text!r}") from None
    batches = [batch for batch, _ in shapes]
    if batches[0] != 1 or any(low >= high for low, high in pairwise(batches)):
        raise ConfigError(f"shapes: batch sizes must ascend from 1, got {text!r}")
    if any(count < 1 for _, children in shapes for count in children):
        raise ConfigError(f"shapes: a node has at least one child or the level is left out, got {text!r}")
    return shapes
