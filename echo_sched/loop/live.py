"""Scheduling settings that change while requests run: whether a change is possible, and what it leads to.

Whoever runs keeps running, and gets the same tokens: policies decide what is drafted, never what is emitted.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from echo_sched.arms import LIVE_SETTINGS
from echo_sched.config import EngineConfig
from echo_sched.errors import ConfigError, RequestError
from echo_sched.scheduler.live import Thresholds
from echo_sched.scheduler.policy import PolicySettings


class Change(NamedTuple):
    """What is in force from the next step on."""

    config: EngineConfig
    thresholds: Thresholds  # in the place of the profile's


def changed(built: EngineConfig, now: EngineConfig, thresholds: Thresholds, changes: Mapping[str, Any]) -> Change:
    """Apply `changes`, setting -> value, to the settings `now` of a loop that was built with `built`.

    `thresholds` may be a mode, as on the command line, or {depth: cut-off, or None to leave the depth unread}: those
    are then in force in the place of the profile's, until the gate's settings change. Raises RequestError naming the
    setting.
    """
    changes = dict(changes)
    given = changes.get("thresholds")
    by_hand = _depths(changes.pop("thresholds")) if isinstance(given, Mapping) else None
    unknown = sorted(set(changes) - set(LIVE_SETTINGS))
    if unknown:
        known = ", ".join(LIVE_SETTINGS)
        raise RequestError(f"unknown field {unknown[0]!r}; what can change while serving: {known}", unknown[0])
    config = _validated(now, changes)
    _check_possible(built, config)
    if by_hand is not None:
        _check_gate(config, by_hand)
    elif {"gate", "thresholds"} & set(changes):
        by_hand = {}
    return Change(config, thresholds if by_hand is None else by_hand)


def _validated(now: EngineConfig, changes: Mapping[str, Any]) -> EngineConfig:
    try:
        config = EngineConfig.model_validate(now.model_dump() | dict(changes), strict=True)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        name = str(detail["loc"][0]) if detail["loc"] else None
        message = re.sub("^(Input|Value error,) ", "", str(detail["msg"]))
        message = message if name is None else f"{name} {message}, got {repr(detail['input'])[:80]}"
        raise RequestError(message, name) from error
    try:
        PolicySettings.of(config)
    except ConfigError as error:  # the one setting whose text has rules beyond its pattern
        raise RequestError(str(error), "shapes") from error
    return config


def _check_possible(built: EngineConfig, config: EngineConfig) -> None:
    """What was decided when the engine was loaded."""
    if config.k_max > built.k_max:
        message = (
            f"k_max is {config.k_max}, but this engine was started with --k-max {built.k_max}, the most it has room for"
        )
        raise RequestError(message, "k_max")
    if config.policy != "off" and built.policy == "off":
        message = (
            f"policy {config.policy} drafts, but this engine was started with --policy off: nothing was kept for the "
            "drafter and the cost of drafting was not measured; restart with a policy that drafts"
        )
        raise RequestError(message, "policy")
    if config.price == "on" and built.price == "off":
        message = "price is on, but this engine was started with --price off and its costs were not measured"
        raise RequestError(message, "price")


def _check_gate(config: EngineConfig, thresholds: Thresholds) -> None:
    if config.policy != "echo" or config.gate == "none":
        raise RequestError("thresholds: only the policy echo with a gate reads any", "thresholds")
    for depth in thresholds:
        if depth > config.max_depth:
            raise RequestError(f"thresholds name depth {depth}, but max_depth is {config.max_depth}", "thresholds")


def _depths(given: Mapping[str, Any]) -> dict[int, float | None]:
    """{"1": 0.4, "4": null} by depth."""
    found: dict[int, float | None] = {}
    for name, value in given.items():
        # int() alone would take spaces, underscores and digits of other scripts
        if not re.fullmatch(r"[1-9][0-9]{0,3}", name):
            raise RequestError(f"thresholds name {name!r}, which is no depth from 1 on", "thresholds")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (number and 0 <= value <= 1):
            message = f"thresholds.{name} must be a number in [0, 1] or null, got {repr(value)[:80]}"
            raise RequestError(message, "thresholds")
        found[int(name)] = None if value is None else float(value)
    return found
