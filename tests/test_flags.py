"""Flags are made from EngineConfig and lead back to it."""

import argparse
from typing import get_args

import pytest

from echo_sched.cli import Parser
from echo_sched.config import AUTO_DRAFTER, DRAFTERS, EngineConfig, PolicyName
from echo_sched.errors import ConfigError
from echo_sched.flags import add_engine_flags, engine_config

DRAFTER = "--drafter should be auto, ngram, eagle3, lm or several joined with + as in eagle3+ngram"


def parse(*argv: str, exclude: tuple[str, ...] = ()) -> argparse.Namespace:
    parser = Parser(prog="echo-sched try")
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
    config = engine_config(parse("--drafter", "eagle3+ngram+eagle3", "--draft-model", "a,b"))
    assert (config.drafter, config.draft_model) == ("eagle3+ngram+eagle3", "a,b")


def test_overrides_win_over_flags() -> None:
    assert engine_config(parse("--policy", "static"), policy="off").policy == "off"


def test_excluded_fields_have_no_flag_and_keep_their_default() -> None:
    args = parse(exclude=("policy",))
    assert not hasattr(args, "policy")
    assert engine_config(args).policy == EngineConfig().policy
    with pytest.raises(ConfigError, match=r"^unrecognized arguments: --policy off \(see echo-sched try --help\)$"):
        parse("--policy", "off", exclude=("policy",))


def test_literals_become_choices() -> None:
    assert "{" + ",".join(get_args(PolicyName)) + "}" in help_text()
    assert all(name in help_text() for name in (AUTO_DRAFTER, *DRAFTERS))  # may be joined, so they are no choices
    with pytest.raises(ConfigError, match="argument --policy: invalid choice: 'guess'"):
        parse("--policy", "guess")


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
        (["--kv-memory", "0"], "--kv-memory should be greater than 0, got 0.0"),
        (["--kv-memory", "nan"], "--kv-memory should be a finite number, got nan"),
        (["--kv-memory", "inf"], "--kv-memory should be a finite number, got inf"),
        (["--kv-memory=-inf"], "--kv-memory should be a finite number, got -inf"),
        (["--drafter", "eagle3+oracle"], f"{DRAFTER}, got 'eagle3+oracle'"),
        (["--drafter", "auto+ngram"], f"{DRAFTER}, got 'auto+ngram'"),
        (["--drafter", "eagle3+"], f"{DRAFTER}, got 'eagle3+'"),
        (["--drafter", "ngram+ngram"], "--drafter should name ngram once at most, got 'ngram+ngram'"),
        (["--draft-model", "a,"], "--draft-model should name a head or a model before and after every comma, got 'a,'"),
        (["--draft-model", ""], "--draft-model should name a head or a model before and after every comma, got ''"),
        (
            ["--max-step-stretch", "0.1", "--price", "off"],
            "--max-step-stretch needs --price on: without it no step's time is reckoned",
        ),
        (["--draft-aux-layers", "x"], r"--draft-aux-layers should match pattern '^\d+(,\d+)*$', got 'x'"),
    ],
)
def test_out_of_range_names_the_flag(argv: list[str], line: str) -> None:
    with pytest.raises(ConfigError) as error:
        engine_config(parse(*argv))
    assert str(error.value) == line


def test_a_value_made_from_another_flag_is_complained_about_under_its_name() -> None:
    with pytest.raises(ConfigError, match=r"^--concurrency should be less than or equal to 1024, got 2000$"):
        engine_config(parse(), {"max_batch_size": "concurrency"}, max_batch_size=2000)
