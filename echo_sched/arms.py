"""The arms of a comparison: a policy's name, with settings of its own where an ablation is compared.

off,static,echo,echo:gate=none,echo:gate=dense:widen=off
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from echo_sched.config import EngineConfig
from echo_sched.errors import ConfigError

REFERENCE = "off"  # plain decoding: what every arm's tokens and speed are compared with
ARM_SETTINGS = (
    "k_max",
    "k_max_rule",
    "price",
    "live_costs",
    "live_acceptance",
    "max_depth",
    "branching",
    "shapes",
    "gate",
    "gate_scope",
    "thresholds",
    "transfer",
    "widen",
    "widen_scope",
    "explore",
    "adapt",
    "node_floor",
    "max_step_stretch",
)
LIVE_SETTINGS = ("policy", *ARM_SETTINGS)  # what may change while an engine runs
SCHEDULING = (*LIVE_SETTINGS, "chunk_tokens")  # what decides the steps of an arm


class Arm(NamedTuple):
    name: str  # as the caller wrote it
    config: EngineConfig


def parse_arms(text: str, base: EngineConfig, flag: str = "--arms") -> list[Arm]:
    """The arms of a comma-separated list, the reference first among them if it was not named. `flag` holds the list.

    Raises ConfigError for an unknown policy or setting, a value out of range, or an arm named twice.
    """
    names = [name.strip() for name in text.split(",")]
    if REFERENCE not in names:
        names.insert(0, REFERENCE)
    if len(set(names)) < len(names):
        raise ConfigError(f"{flag} names an arm twice: {text}")
    return [parse_arm(name, base, flag) for name in names]


def settings_of(arms: Sequence[Arm]) -> dict[str, dict[str, Any]]:
    """What was really set, by arm: files from different commands are compared by it. JSON-able."""
    return {arm.name: {name: getattr(arm.config, name) for name in SCHEDULING} for arm in arms}


def parse_arm(name: str, base: EngineConfig, flag: str = "--arms") -> Arm:
    """One arm of such a list. Raises ConfigError."""
    policy, *words = name.split(":")
    settings: dict[str, str] = {}
    for word in words:
        key, _, value = word.partition("=")
        key = key.replace("-", "_")
        if key not in ARM_SETTINGS:
            raise ConfigError(f"{flag} {name}: no setting {key!r}; an arm may set {', '.join(ARM_SETTINGS)}")
        settings[key] = value
    try:
        return Arm(name, EngineConfig.model_validate(base.model_dump() | settings | {"policy": policy}))
    except ValidationError as error:
        problem = error.errors()[0]
        raise ConfigError(f"{flag} {name}: {'.'.join(map(str, problem['loc']))}: {problem['msg']}") from error
