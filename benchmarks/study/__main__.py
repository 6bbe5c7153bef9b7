"""`python -m benchmarks.study NAME`: measures one declared study and keeps what came of it as raw JSON."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from hashlib import sha256
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.plan import Block, Plan
from benchmarks.shared_engine import encode_fitting, margin, open_engine
from benchmarks.studies import STUDIES
from benchmarks.study.declared import Study
from benchmarks.study.file import ResultsFile, read_results
from benchmarks.study.prompt_sets import NamedPrompt, PromptSet, add_data_flag, load_sets, mixed
from benchmarks.study.resolve import BEST_TREE, Outline, outlines
from benchmarks.study.run import run_missing
from benchmarks.workload import add_turn_flag, non_negative_int, positive_int
from echo_sched.arms import REFERENCE
from echo_sched.cli import Parser, run
from echo_sched.config import EngineConfig
from echo_sched.errors import ConfigError
from echo_sched.flags import add_engine_flags, engine_config
from echo_sched.provenance import provenance
from echo_sched.report import check_output, console, print_json
from echo_sched.types import SamplingParams

if TYPE_CHECKING:
    from echo_sched.loop import DecodeLoop

RESULTS = Path(__file__).resolve().parents[1] / "results"
MAX_MODEL_LEN = 640  # every prompt of the sets fits, with its answer, and many arms have KV of their own
OWN_FLAGS = ("policy", "max_batch_size", "seed")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0. Raises ConfigError, DataError, ModelError, ProfileError."""
    argv = sys.argv[1:] if argv is None else argv
    args = _parser().parse_args(argv)
    study = STUDIES[args.study].quick() if args.quick else STUDIES[args.study]
    if args.quick and args.out is None:
        raise ConfigError("--quick needs --out: a dry run does not belong among the results")
    out = args.out or RESULTS / f"{study.name}.json"
    check_output(out, "--out")
    most = max(concurrency for group in study.groups for concurrency in group.num_requests)
    base = engine_config(args, policy=REFERENCE, max_batch_size=most, seed=0, **study.settings)
    found = outlines(study, base, args.profiles, _grid(study, out.parent, args.quick))
    names = dict.fromkeys(name for group in study.groups for name in group.sets)
    sets = load_sets(args.data, tuple(names), study.half)

    arms = [arm for outline in found for arm in outline.arms]
    loop = open_engine(arms, base, recording=False)
    asked = {outline.name: _ask(loop, study, outline, sets) for outline in found}
    blocks = [_block(study, outline, asked[outline.name]) for outline in found]
    plan = Plan(blocks, args.repeats or study.num_repeats, args.num_warmups, args.turn_seconds)
    head = _head(study, args, loop, found, asked, sets)
    session = provenance(["python", "-m", "benchmarks.study", *map(_without_folders, argv)])
    cost = loop.profile.cost
    results = ResultsFile(out, head, session | {"cost": None if cost is None else cost.to_json()})
    run_missing(loop, plan, results, partial(margin, loop), study.num_margins, partial(console.print, markup=False))
    print_json({"output": str(out), "num_trials": len(results.document["cells"])})
    return 0


Asked = list[tuple[NamedPrompt, tuple[int, ...]]]  # one per request, with its token ids


def _ask(loop: "DecodeLoop", study: Study, outline: Outline, sets: Mapping[str, PromptSet]) -> Asked:
    """The requests of a block: prompts that fit, in turn, again from the first where there are too few."""
    prompts = mixed(sets, outline.group.sets)
    encoded = encode_fitting(loop, [prompt.prompt for prompt in prompts], study.max_new_tokens, "auto", "--data")
    fitting = [(prompt, ids) for prompt, ids in zip(prompts, encoded, strict=True) if ids is not None]
    return list(islice(cycle(fitting), outline.group.num_requests[outline.concurrency]))


def _block(study: Study, outline: Outline, asked: Asked) -> Block:
    params = SamplingParams(study.max_new_tokens, outline.group.temperature, seed=0, ignore_eos=True)
    return Block(outline.name, outline.arms, outline.concurrency, [ids for _, ids in asked], params)


def _head(
    study: Study,
    args: argparse.Namespace,
    loop: "DecodeLoop",
    found: Sequence[Outline],
    asked: Mapping[str, Asked],
    sets: Mapping[str, PromptSet],
) -> dict[str, Any]:
    """What the file says of the study before any trial."""
    blocks = {
        outline.name: {
            "group": outline.group.name,
            "concurrency": outline.concurrency,
            "temperature": outline.group.temperature,
            "first_seed": 0,
            "left_out": outline.left_out,
            "arms": {arm.name: _settings(arm.config) for arm in outline.arms},
            "prompts": [[named.prompt_id, named.digest, len(ids)] for named, ids in asked[outline.name]],
        }
        for outline in found
    }
    return {
        "study": study.name,
        "question": study.question,
        "quick": args.quick,
        "max_new_tokens": study.max_new_tokens,
        "num_warmups": args.num_warmups,
        "turn_seconds": args.turn_seconds,
        "engine": loop.info() | {"model": loop.config.model, "profile": _file_name(loop.config.profile)},
        "profile": asdict(loop.profile.model) | {"provenance": loop.profile.provenance},
        "profiles": {name: _identity(path) for name, path in args.profiles.items()},
        "prompt_sets": {name: {"sha256": found.sha256, "half": study.half} for name, found in sets.items()},
        "blocks": blocks,
    }


def _settings(config: EngineConfig) -> dict[str, Any]:
    return config.model_dump() | {"profile": _file_name(config.profile)}


def _without_folders(word: str) -> str:
    """An absolute path's last part: where a folder lies says more of the machine than of the study."""
    return Path(word).name if Path(word).is_absolute() else word


def _file_name(path: str | None) -> str | None:
    return None if path is None else Path(path).name


def _identity(path: Path) -> dict[str, Any]:
    """Which profile it is, and on what it was fitted."""
    raw = path.read_bytes()
    return {"file": path.name, "sha256": sha256(raw).hexdigest(), "data": json.loads(raw)["provenance"].get("data")}


def _grid(study: Study, folder: Path, quick: bool) -> dict[str, Any] | None:
    """What the study `grid` left in this folder, where an arm asks for it. Raises ConfigError, DataError."""
    needed = any(BEST_TREE in group.arms for group in study.groups)
    path = folder / "grid.json"
    if not needed or not path.exists():
        return None
    grid = read_results(path)
    if grid["quick"] and not quick:
        raise ConfigError(f"{path} is of a dry run: it cannot say which tree is the best")
    return grid


def _profile_files(text: str) -> dict[str, Path]:
    """argparse type: "maths=FILE,chat=FILE"."""
    pairs = [entry.partition("=") for entry in text.split(",")]
    for name, _, path in pairs:
        if not name or not Path(path).is_file():
            raise ConfigError(f"--profiles takes NAME=FILE[,NAME=FILE...]: there is no file {path!r} for {name!r}")
    return {name: Path(path) for name, _, path in pairs}


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "python -m benchmarks.study",
        description="Measure one study behind docs/results.md and keep every trial as raw JSON. A file that an earlier "
        "run left unfinished is continued. `make reproduce` turns the files into tables and figures.",
        epilog="studies: " + "; ".join(f"{study.name}: {study.question}" for study in STUDIES.values()),
    )
    parser.add_argument("study", choices=tuple(STUDIES), metavar="NAME", help=", ".join(STUDIES))
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: benchmarks/results/NAME.json")
    parser.add_argument("--repeats", type=positive_int, metavar="N", help="default: as the study declares")
    parser.add_argument("--quick", action="store_true", help="two requests of 8 tokens, once: does it run at all?")
    parser.add_argument("--num-warmups", type=non_negative_int, default=2, metavar="N", help="default: %(default)s")
    add_turn_flag(parser)
    parser.add_argument(
        "--profiles",
        type=_profile_files,
        default={},
        metavar="NAME=FILE[,...]",
        help="profiles of arms that are written ARM@NAME",
    )
    add_data_flag(parser)
    add_engine_flags(parser, exclude=OWN_FLAGS)
    parser.set_defaults(max_model_len=MAX_MODEL_LEN)
    return parser


if __name__ == "__main__":
    run(main)
