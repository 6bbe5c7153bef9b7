"""The evaluation prompts of the studies, each set in two halves: one to tune on, one to report on.

Rows of a file take turns (odd ones tune, even ones report), so that categories that stand together end up in both.
Knows no engine. The files are not part of the repository; see `--data`.
"""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.study.declared import Half
from echo_sched.cli import Parser, run
from echo_sched.errors import DataError
from echo_sched.prompts import Prompt, load_prompts
from echo_sched.report import check_output, print_json

FILES = {
    "mt-bench": "mt_bench_question.jsonl",
    "humaneval": "eagle_humaneval_question.jsonl",
    "gsm8k": "gsm8k_test.jsonl",
}
DEFAULT_DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
DATA_VARIABLE = "ECHO_STUDY_DATA"


class NamedPrompt(NamedTuple):
    prompt_id: str  # set and row, as in gsm8k:12
    prompt: Prompt

    @property
    def digest(self) -> str:
        """Of what is asked, so that a results file says on what it was measured without holding the text."""
        asked = self.prompt.messages or self.prompt.text
        return sha256(json.dumps(asked).encode()).hexdigest()[:12]


class PromptSet(NamedTuple):
    name: str
    sha256: str  # of the file
    prompts: list[NamedPrompt]  # of one half, in the file's order


def load_sets(data: Path, names: Sequence[str], half: Half) -> dict[str, PromptSet]:
    """Raises DataError where the folder or a file is not there."""
    folder = data / "eval"
    if not folder.is_dir():
        raise DataError(
            f"the prompts of the studies are not here: there is no folder {folder}; name the folder that holds eval/ "
            f"with --data or {DATA_VARIABLE}"
        )
    return {name: _load(folder / FILES[name], name, half) for name in names}


def mixed(sets: Mapping[str, PromptSet], names: Sequence[str]) -> list[NamedPrompt]:
    """The sets' prompts in turn, as many of each as the smallest has."""
    smallest = min(len(sets[name].prompts) for name in names)
    turns = zip(*(sets[name].prompts[:smallest] for name in names), strict=True)
    return [prompt for turn in turns for prompt in turn]


def _load(path: Path, name: str, half: Half) -> PromptSet:
    file = load_prompts(path)
    chosen = [prompt for prompt in file.prompts if (prompt.source_row % 2 == 0) == (half == "report")]
    return PromptSet(
        name, file.sha256, [NamedPrompt(f"{name}:{prompt.source_row}", _as_chat(prompt)) for prompt in chosen]
    )


def _as_chat(prompt: Prompt) -> Prompt:
    """An instruction model is asked, also where a file holds bare questions."""
    return prompt if prompt.messages else prompt._replace(messages=({"role": "user", "content": prompt.text or ""},))


def main(argv: Sequence[str] | None = None) -> int:
    """Write half a set as a prompt file, for `echo-sched calibrate`."""
    parser = Parser("python -m benchmarks.study.prompt_sets", description=main.__doc__)
    parser.add_argument("set", choices=tuple(FILES))
    parser.add_argument("--half", choices=("tuning", "report"), default="tuning", help="default: %(default)s")
    add_data_flag(parser)
    parser.add_argument("--max-prompts", type=int, metavar="N", help="default: all")
    parser.add_argument("--out", required=True, metavar="FILE", help="JSON lines to write")
    args = parser.parse_args(argv)
    check_output(args.out, "--out")
    prompts = load_sets(args.data, [args.set], args.half)[args.set].prompts[: args.max_prompts]
    rows: list[dict[str, Any]] = [{"id": prompt.prompt_id, "messages": prompt.prompt.messages} for prompt in prompts]
    Path(args.out).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print_json({"output": args.out, "num_prompts": len(rows)})
    return 0


def add_data_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(os.environ.get(DATA_VARIABLE, DEFAULT_DATA)),
        metavar="DIR",
        help=f"folder whose eval/ holds the prompt files (default: {DATA_VARIABLE}, else shared/data beside the "
        "repository)",
    )


if __name__ == "__main__":
    run(main)
