"""Flags are made from EngineConfig and lead back to it."""

import argparse
from typing import get_args

import pytest

from echo_sched.config import DrafterName, EngineConfig, PolicyName
from echo_sched.errors import ConfigError
from echo_sched.flags import add_engine_flags, engine_config


def parse(*argv: str, exclude: tuple[str, ...] = ()) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_engine_flags(parser, exclude=exclude)
    return parser.parse_args(argv)


def help_text() -> str:
    parser = argparse.ArgumentParser()
    add_engine_flags(parser)
    return " ".join(parser.format_help().split())


def test_no_flags_are_the_defaults() -> None:
    assert engine_config(parse()) == EngineConfig()


def test_every_field_has_a_flag_that_carries_its_default() -> None:
    argv = []
    for name, field in EngineConfig.model_fields.items():
        if field.default is not None:
            argv += [f"--{name.replace('_', '-')}", str(field.default)]
    assert engine_config(parse(*argv)) == EngineConfig()


def test_values_arrive_with_their_types() -> None:
    config = engine_config(parse("--k-max", "64", "--kv-memory", "1.5", "--policy", "static", "--profile", "p.json"))
    assert (config.k_max, config.kv_memory, config.policy, config.profile) == (64, 1.5, "static", "p.json")


def test_overrides_win_over_flags() -> None:
    assert engine_config(parse("--policy", "static"), policy="off").policy == "off"


def test_excluded_fields_have_no_flag_and_keep_their_default(capsys: pytest.CaptureFixture[str]) -> None:
    args = parse(exclude=("policy",))
    assert not hasattr(args, "policy")
    assert engine_config(args).policy == EngineConfig().policy
    with pytest.raises(SystemExit):
        parse("--policy", "off", exclude=("policy",))
    assert "--policy" in capsys.readouterr().err


def test_literals_become_choices(capsys: pytest.CaptureFixture[str]) -> None:
    assert "{" + ",".join(get_args(PolicyName)) + "}" in help_text()
    assert "{" + ",".join(get_args(DrafterName)) + "}" in help_text()
    with pytest.raises(SystemExit) as exit_info:
        parse("--policy", "guess")
    assert exit_info.value.code == 2
    assert "argument --policy: invalid choice: 'guess'" in capsys.readouterr().err


def test_help_shows_descriptions_and_defaults() -> None:
    text = help_text()
    for name, field in EngineConfig.model_fields.items():
        assert field.description is not None
        assert " ".join(field.description.split()) in text, name
    assert f"(default: {EngineConfig().k_max})" in text
    assert "None" not in text


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["--k-max", "-1"], "--k-max should be greater than or equal to 0, got -1"),
        (["--max-depth", "65"], "--max-depth should be less than or equal to 64, got 65"),
        (["--kv-memory", "nan"], "--kv-memory should be greater than 0, got nan"),
    ],
)
def test_out_of_range_names_the_flag(argv: list[str], line: str) -> None:
    with pytest.raises(ConfigError) as error:
        engine_config(parse(*argv))
    assert str(error.value) == line
