"""The `echo-sched` command: a thin door. It finds the subcommand, imports its module by name, and hands over the rest.

Also what all commands share: `Parser`, and `run`, the one place where an error of our family becomes one line on stderr
and an exit code. Knows no flag of any subcommand, and imports none before it is asked for, so that `--help` is quick.
"""

import argparse
import difflib
import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple, NoReturn

from echo_sched.errors import ConfigError, EchoSchedError

Main = Callable[[Sequence[str] | None], int]

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130


class Parser(argparse.ArgumentParser):
    """A command's flags. What it rejects is a ConfigError: one line like any other, not a page of usage before it.

    Flags are not abbreviated, so that what must not be written down (an API key) is known by its one name.
    """

    def __init__(self, prog: str, **settings: Any) -> None:
        super().__init__(prog, allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        """Raises ConfigError."""
        raise ConfigError(f"{' '.join(message.split())} (see {self.prog} --help)")


class Command(NamedTuple):
    """A subcommand: the module whose `main(argv) -> int` does it, and a line for the help."""

    module: str
    summary: str


COMMANDS = {
    "serve": Command("server.__main__", "serve a model over HTTP"),
    "calibrate": Command("echo_sched.calibrate", "measure a model on your prompts and write the scheduler's profile"),
    "simulate": Command(
        "calibration.simulate.main", "try policies on a recorded trace, at any load and cost, without a model"
    ),
    "advise": Command("calibration.advise.main", "measure which draft tree pays on this machine for your prompts"),
    "train-draft": Command("echo_sched.train_draft", "train an EAGLE-3 draft head from a model's own answers"),
    "bench load": Command(
        "benchmarks.load_test", "send a file of prompts to a running server at several concurrencies"
    ),
    "bench compare": Command(
        "benchmarks.compare", "run policies against each other in this process, same prompts, same tokens"
    ),
    "bench chains": Command(
        "benchmarks.chains", "compare a head's acceptance by position with a vLLM server that has the same head"
    ),
    "fetch": Command("echo_sched.fetch", "download or convert a model into the cache and print its folder"),
}

EXAMPLES = """\
a first session:
  echo-sched serve                                  # SmolLM2-135M-Instruct (Q4_1 weights, dequantised), 127.0.0.1:8000
  echo-sched calibrate prompts.jsonl --out profile.json
  echo-sched serve --profile profile.json --k-max 64
  echo-sched calibrate prompts.jsonl --out profile.json --trace trace.jsonl.gz
  echo-sched simulate trace.jsonl.gz --profile profile.json --concurrency 8,64,256 --output simulated.json
  echo-sched bench load --base-url http://127.0.0.1:8000 --dataset-path prompts.jsonl --max-concurrency 1,8,32

`echo-sched COMMAND --help` explains a command and its flags."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `echo-sched ARGV...` and return its exit code; an error of our family is already on stderr by then."""
    return _guarded(_dispatch, argv)


def run(command: Main) -> NoReturn:
    """Run a command's main on the process's arguments and exit.

    EchoSchedError becomes `error: ...` on stderr and exit code 2, an interrupt 130. Anything else is a bug of ours and
    keeps its traceback.
    """
    sys.exit(_guarded(command, None))


def _guarded(command: Main, argv: Sequence[str] | None) -> int:
    try:
        return command(argv)
    except EchoSchedError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _dispatch(argv: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    for length in (1, 2):
        name = " ".join(words[:length])
        if name in COMMANDS:
            command: Main = importlib.import_module(COMMANDS[name].module).main
            return command(words[length:])
    if words[:1] == ["--version"]:
        print(f"echo-sched {version('echo-sched')}")
        return 0
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help(COMMANDS))
        return 0
    family = {name: command for name, command in COMMANDS.items() if name.startswith(f"{words[0]} ")}
    if family and (len(words) == 1 or words[1] in ("-h", "--help")):
        print(_help(family))
        return 0
    raise ConfigError(_unknown(words, family))


def _help(commands: dict[str, Command]) -> str:
    lines = [f"  {name:<15}{command.summary}" for name, command in commands.items()]
    return "\n".join(
        [
            "usage: echo-sched COMMAND [FLAGS]",
            "",
            "Lossless tree speculative decoding under one draft budget for the whole batch.",
            "",
            "commands:",
            *lines,
            "",
            EXAMPLES,
        ]
    )


def _unknown(words: Sequence[str], family: dict[str, Command]) -> str:
    name = " ".join(words[:2]) if family else words[0]
    close = difflib.get_close_matches(name, family or COMMANDS, n=1)
    hint = f"did you mean `echo-sched {close[0]}`?" if close else "`echo-sched --help` lists the commands"
    return f"unknown command {name!r}; {hint}"
