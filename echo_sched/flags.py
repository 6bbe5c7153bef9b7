"""Command-line flags of an engine, made from EngineConfig: one flag per field, its description the help text.

Knows no field by name, so a new setting is a flag at once. Knows nothing of what the settings mean.
"""

import argparse
import re
from collections.abc import Collection, Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from echo_sched.config import EngineConfig
from echo_sched.errors import ConfigError


def add_engine_flags(parser: argparse.ArgumentParser, *, exclude: Collection[str] = ()) -> None:
    """Add a flag for every EngineConfig field but those in `exclude` (field names, as in `k_max`)."""
    assert set(exclude) <= set(EngineConfig.model_fields), "only fields can be left out"
    group = parser.add_argument_group("engine")
    for name, field in EngineConfig.model_fields.items():
        if name not in exclude:
            group.add_argument(flag_of(name), default=field.default, help=_help(field), **_parsing(field.annotation))


def engine_config(
    args: argparse.Namespace, sources: Mapping[str, str] | None = None, /, **overrides: Any
) -> EngineConfig:
    """The settings in `args`, `overrides` on top, defaults below.

    sources: override -> the setting of `args` that it was made from, where a user knows the one and not the other.
    Raises ConfigError, naming the wrong flags.
    """
    given = {name: getattr(args, name) for name in EngineConfig.model_fields if hasattr(args, name)}
    try:
        return EngineConfig(**(given | overrides))
    except ValidationError as error:
        raise ConfigError("; ".join(_complaint(detail, sources or {}) for detail in error.errors())) from error


def flag_of(name: str) -> str:
    """`k_max` -> `--k-max`."""
    return f"--{name.replace('_', '-')}"


def _help(field: FieldInfo) -> str:
    assert field.description, "every setting explains itself"
    text = field.description.replace("%", "%%")  # argparse formats help texts
    return text if field.default is None else f"{text} (default: {field.default})"


def _parsing(annotation: Any) -> dict[str, Any]:
    """How argparse reads a field of this type: choices for a Literal, else a converter and a placeholder."""
    if get_origin(annotation) in (Union, UnionType):
        (annotation,) = (part for part in get_args(annotation) if part is not NoneType)
    if get_origin(annotation) is Literal:
        return {"choices": get_args(annotation)}
    assert annotation in (str, int, float), f"no flag can carry a {annotation}"
    return {"type": annotation, "metavar": {str: "NAME", int: "N", float: "X"}[annotation]}


def _complaint(detail: Any, sources: Mapping[str, str]) -> str:
    message = re.sub("^(Input|String|Value error,) ", "", str(detail["msg"]))
    if not detail["loc"]:  # a rule about several settings names them itself
        return message
    name = str(detail["loc"][0])
    return f"{flag_of(sources.get(name, name))} {message}, got {detail['input']!r}"
