"""Studies: declared arms come out as configs, every trial is kept, and an unfinished file is continued."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.plan import Block, Plan
from benchmarks.reproduce.__main__ import REPOSITORY, rebuild
from benchmarks.studies import GRID, STUDIES
from benchmarks.study import __main__ as command
from benchmarks.study import prompt_sets
from benchmarks.study.declared import Group, Study
from benchmarks.study.file import ResultsFile, read_results
from benchmarks.study.prompt_sets import FILES, load_sets, mixed
from benchmarks.study.resolve import best_tree, num_nodes, outlines
from benchmarks.study.run import run_missing
from echo_sched.arms import parse_arms
from echo_sched.config import EngineConfig
from echo_sched.errors import ConfigError, DataError
from echo_sched.types import Request, SamplingParams
from tests.fake_engine import FakeEngine, Wrong
from tests.loops import tiny_loop, tiny_target

BASE = EngineConfig(policy="off", max_batch_size=64)
HEAD = {
    "study": "ready",
    "quick": False,
    "max_new_tokens": 7,
    "num_warmups": 1,
    "turn_seconds": 1.0,
    "engine": {},
    "profiles": {},
    "prompt_sets": {},
    "blocks": {},
}


def study_of(*arms: str, levels: Sequence[int] = (4,), most_nodes: int | None = None) -> Study:
    return Study("s", "?", (Group(arms, dict.fromkeys(levels, 2)),), 8, 1, most_nodes=most_nodes)


def grid_document(speeds: dict[str, float], concurrency: int = 4) -> dict[str, Any]:
    arms, block = {"off": 50} | speeds, f"c{concurrency}"
    common = {"block": block, "repeat": 0, "concurrency": concurrency, "tokens": 100}
    return {
        "cells": [{**common, "arm": arm, "seconds": 100 / arms[arm]} for arm in arms],
        "blocks": {block: {"concurrency": concurrency, "arms": {arm: {} for arm in arms}}},
    }


# From declarations to arms.


@pytest.mark.parametrize(("shape", "nodes"), [("1", 1), ("1.1.1", 3), ("3.2.1", 15), ("3.2.2.1.1", 45)])
def test_a_tree_has_so_many_nodes(shape: str, nodes: int) -> None:
    assert num_nodes(shape) == nodes


def test_a_tree_is_whole_for_every_request_and_has_no_price() -> None:
    (outline,) = outlines(study_of("off", "tree:3.2.1"), BASE, {}, None)
    config = outline.arms[1].config
    assert (config.policy, config.shapes, config.price, config.k_max_rule) == ("table", "1=3.2.1", "off", "fixed")
    assert (config.k_max, config.max_depth, config.branching) == (15 * 4, 3, 3)
    assert outline.arms[0].config == BASE.model_copy(update={"max_batch_size": 4}), "KV for no more than that"


def test_trees_beyond_the_study_are_left_out() -> None:
    found = outlines(study_of("off", "tree:2.1", "tree:3.2", levels=(4, 8), most_nodes=40), BASE, {}, None)
    assert [[arm.name for arm in outline.arms] for outline in found] == [
        ["off", "tree:2.1", "tree:3.2"],
        ["off", "tree:2.1"],
    ]
    assert [outline.left_out for outline in found] == [[], ["tree:3.2"]]


def test_the_best_tree_gains_most_over_its_own_blocks_plain_decoding() -> None:
    """Trees in two blocks, one of which met a slow spell."""
    chains, trees = grid_document({"off": 50, "tree:1": 60}), grid_document({"off": 20, "tree:2.1": 30})
    for cell in trees["cells"]:
        cell["block"] = "trees c4"
    blocks = chains["blocks"] | {"trees c4": trees["blocks"]["c4"]}
    assert best_tree({"cells": chains["cells"] + trees["cells"], "blocks": blocks}, 4) == "2.1"


def test_the_best_tree_is_the_grids_fastest_at_the_same_concurrency() -> None:
    grid = grid_document({"off": 90, "tree:1.1": 40, "tree:2.1": 60})
    assert best_tree(grid, 4) == "2.1" and best_tree(grid, 8) is None
    (outline,) = outlines(study_of("off", "best-tree"), BASE, {}, grid)
    assert outline.arms[1].name == "best-tree" and outline.arms[1].config.shapes == "1=2.1"
    unfinished = grid_document({"tree:1": 5, "tree:1.1": 9})
    unfinished["cells"].pop()
    for unknown in (None, grid_document({"off": 90}), grid_document({"tree:1": 5}, concurrency=8), unfinished):
        with pytest.raises(ConfigError, match="run the study grid first"):
            outlines(study_of("off", "best-tree"), BASE, {}, unknown)


def test_an_arm_may_have_a_profile_of_its_own(tmp_path: Path) -> None:
    (outline,) = outlines(study_of("off", "echo:gate=none@maths"), BASE, {"maths": tmp_path}, None)
    assert outline.arms[1].config.profile == str(tmp_path) and outline.arms[1].config.gate == "none"
    with pytest.raises(ConfigError, match="--profiles chat=FILE"):
        outlines(study_of("off", "echo@chat"), BASE, {"maths": tmp_path}, None)


@pytest.mark.parametrize("name", STUDIES)
def test_every_declared_study_can_run(name: str, tmp_path: Path) -> None:
    study, levels = STUDIES[name], GRID.groups[0].num_requests
    grids = [grid_document({"tree:1.1": 5}, level) for level in levels]
    grid = {
        "cells": [cell for grid in grids for cell in grid["cells"]],
        "blocks": {name: block for grid in grids for name, block in grid["blocks"].items()},
    }
    found = outlines(study, BASE, {"maths": tmp_path / "maths", "chat": tmp_path / "chat"}, grid)
    assert len({outline.name for outline in found}) == len(found), "blocks need names of their own"
    for outline in found:
        assert outline.group.num_requests[outline.concurrency] >= outline.concurrency
        configs = [arm.config for arm in outline.arms]
        assert all(configs.count(config) == 1 for config in configs), "two arms that are one"
    assert all(size == 2 for group in study.quick().groups for size in group.num_requests.values())


# Trials and their file.


def small_plan(num_repeats: int = 2) -> Plan:
    params = SamplingParams(max_new_tokens=7, seed=20, ignore_eos=True)
    arms = parse_arms("off,echo", EngineConfig())
    prompts = [(number,) for number in range(1, 6)]
    return Plan([Block(f"c{level}", arms, level, prompts, params) for level in (1, 4)], num_repeats, num_warmups=1)


def run_into(path: Path, engine: FakeEngine, num_repeats: int = 2, num_margins: int = 1) -> dict[str, Any]:
    results = ResultsFile(path, HEAD, {"git_commit": "abc"})
    run_missing(engine, small_plan(num_repeats), results, lambda prompt, *_: 0.5, num_margins, lambda line: None)
    return read_results(path)


def test_a_cell_says_what_a_trial_did(tmp_path: Path) -> None:
    document = run_into(tmp_path / "out.json", FakeEngine())
    assert [(cell["repeat"], cell["block"], cell["arm"]) for cell in document["cells"]] == [
        (repeat, block, arm) for repeat in (0, 1) for block in ("c1", "c4") for arm in ("off", "echo")
    ]
    steady = [(cell["steady_tokens"], cell["steady_seconds"] is not None) for cell in document["cells"][:4]]
    assert steady == [(4 * 7, True)] * 2 + [(None, False)] * 2, "of four, all end at once, and only one is followed"
    assert all(0 < cell["steady_seconds"] < cell["seconds"] for cell in document["cells"][:2])
    off, echo = document["cells"][:2]
    assert off["tokens"] == echo["tokens"] == 5 * 7
    # a request: the prompt's step, then six of one token or three of two
    assert (off["steps"], off["decoding_steps"]) == (5 * 7, 5 * 6)
    assert off["steps_k_max_zero"] == off["steps_without_draft"] == 5 * 6
    assert (echo["decoding_steps"], echo["steps_k_max_zero"], echo["nodes_verified"]) == (5 * 3, 0, 5 * 3 * 3)
    assert echo["acceptance_length"] == 2.0 and echo["utilisation"] == pytest.approx(1 / 3, abs=1e-4)
    assert echo["requests"]["tokens"] == [7] * 5
    assert all(
        value is not None and value >= 0 for value in echo["requests"]["tpot_ms"] + echo["requests"]["p95_gap_ms"]
    )
    assert echo["equality"] == {"num_compared": 5, "forks": []}
    assert document["references"]["c4"] == [[100 * prompt + place for place in range(7)] for prompt in range(1, 6)]


def test_forks_are_kept_and_the_first_of_them_with_margins(tmp_path: Path) -> None:
    wrong: Wrong = lambda policy, load, prompt, place: policy == "echo" and prompt in (2, 4) and place == 5  # noqa: E731
    cells = run_into(tmp_path / "out.json", FakeEngine(wrong=wrong))["cells"]
    forks = {(cell["repeat"], cell["block"]): cell["equality"]["forks"] for cell in cells if cell["arm"] == "echo"}
    assert forks[0, "c1"] == [[1, 5, 205, -1, 0.5], [3, 5, 405, -1, None]]
    assert forks[1, "c1"] == [[1, 5, 205, -1, None], [3, 5, 405, -1, None]]


class Breaking(FakeEngine):
    """Refuses to serve after so many trials."""

    trials_left = 5

    def beside(self, config: EngineConfig) -> FakeEngine:
        Breaking.trials_left -= 1
        if Breaking.trials_left < 0:
            raise KeyboardInterrupt
        return super().beside(config)


def test_an_unfinished_file_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    Breaking.trials_left = 5
    with pytest.raises(KeyboardInterrupt):
        run_into(path, Breaking())
    before = read_results(path)["cells"]
    assert len(before) == 4, "both arms of two blocks; of the third, one arm alone would be no pair"
    Breaking.trials_left = 8
    document = run_into(path, Breaking())
    assert document["cells"][:4] == before and len(document["cells"]) == 8
    assert [cell["session"] for cell in document["cells"]] == [0] * 4 + [1] * 4 and len(document["sessions"]) == 2
    assert len({(cell["repeat"], cell["block"], cell["arm"]) for cell in document["cells"]}) == 8
    assert Breaking.trials_left == 8 - 4, "nothing that was written ran twice"
    more = run_into(path, FakeEngine(), num_repeats=3)
    assert len(more["cells"]) == 12 and more["cells"][:8] == document["cells"]


def test_a_file_of_something_else_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    run_into(path, FakeEngine())
    with pytest.raises(ConfigError, match="measured with other max_new_tokens"):
        ResultsFile(path, HEAD | {"max_new_tokens": 8}, {})
    path.write_text("{}")
    with pytest.raises(DataError, match="holds no study"):
        ResultsFile(path, HEAD, {})


# Prompts.


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "eval").mkdir(parents=True)
    for name, count in (("mt-bench", 6), ("humaneval", 5), ("gsm8k", 9)):
        rows = [{"prompt": f"w{row} w{len(name)} w2 w3"} for row in range(1, count + 1)]
        (folder / "eval" / FILES[name]).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_halves_share_no_prompt_and_sets_take_turns(data: Path) -> None:
    tuning, report = (load_sets(data, tuple(FILES), half) for half in ("tuning", "report"))
    ids = [prompt.prompt_id for prompt in mixed(report, tuple(FILES))]
    assert ids == ["mt-bench:2", "humaneval:2", "gsm8k:2", "mt-bench:4", "humaneval:4", "gsm8k:4"]
    assert not set(ids) & {prompt.prompt_id for prompt in mixed(tuning, tuple(FILES))}
    assert len(tuning["gsm8k"].prompts) + len(report["gsm8k"].prompts) == 9
    digests = [prompt.digest for prompt in report["gsm8k"].prompts]
    assert len(set(digests)) == len(digests) and all(len(digest) == 12 for digest in digests)


def test_half_a_set_can_be_written_for_calibration(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "half.jsonl"
    assert prompt_sets.main(["gsm8k", "--data", str(data), "--max-prompts", "2", "--out", str(out)]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["id"] for row in rows] == ["gsm8k:1", "gsm8k:3"] and rows[0]["messages"][0]["role"] == "user"


def test_without_the_prompts_a_study_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no folder .*--data or ECHO_STUDY_DATA"):
        command.main(["ready", "--data", str(tmp_path), "--out", str(tmp_path / "out.json")])


def test_a_dry_run_does_not_lie_among_the_results(data: Path) -> None:
    with pytest.raises(ConfigError, match="--quick needs --out"):
        command.main(["ready", "--quick", "--data", str(data)])


def test_a_dry_runs_grid_chooses_no_tree(data: Path, tmp_path: Path) -> None:
    (tmp_path / "grid.json").write_text(json.dumps(grid_document({"tree:1": 5}) | {"quick": True}))
    with pytest.raises(ConfigError, match="of a dry run"):
        command.main(["bars", "--data", str(data), "--out", str(tmp_path / "bars.json")])


# The command, on a tiny model, and what is made of its file.


def test_from_the_command_to_the_page(
    data: Path, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STUDIES, "ready", replace(STUDIES["ready"], settings={"numerics": "exact"}))
    out = tmp_path / "ready.json"
    flags = ["--data", str(data), "--model", str(model_folder), "--dtype", "float32", "--max-model-len", "64"]
    words = ["ready", "--quick", "--repeats", "2", "--out", str(out), "--num-warmups", "1", *flags]
    assert command.main(words) == 0
    document = json.loads(out.read_text())
    assert len(document["cells"]) == 3 * 2 * 2
    for cell in document["cells"]:
        assert cell["tokens"] == 2 * 8 and cell["steps_k_max_zero"] == cell["decoding_steps"] > 0
        assert cell["equality"]["forks"] == []
    block = document["blocks"]["c8"]
    assert [row[0] for row in block["prompts"]] == ["mt-bench:2", "humaneval:2"]
    assert block["arms"]["table:shapes=1="]["k_max"] == 32
    assert document["sessions"][0]["argv"][:4] == ["python", "-m", "benchmarks.study", "ready"]
    assert command.main(words) == 0 and json.loads(out.read_text())["cells"] == document["cells"]
    page = rebuild(tmp_path, REPOSITORY / "docs")[REPOSITORY / "docs" / "results.md"]
    assert "a dry run, no measurement" in page and "lower end is at least 0.98: not judged" in page


def test_a_ready_drafter_is_told_the_hidden_states() -> None:
    """The arm of the study `ready`: K_max is 0, and yet the loop keeps what a drafter needs to go on."""

    class Listening:
        """Never drafts; counts what it is told."""

        name, fingerprint, aux_layers = "listening", "", (1,)
        told = 0

        def begin(self, request: Request) -> None: ...

        def release(self, request: Request) -> None: ...

        def observe(self, *_: object) -> None:
            self.told += 1

    told = {}
    for policy, settings in (("off", {}), ("table", {"shapes": "1="})):
        drafter = Listening()
        loop = tiny_loop(tiny_target(), drafter, policy=policy, **settings)  # type: ignore[arg-type]
        loop.add(Request("a", (1, 2, 3), SamplingParams(max_new_tokens=4, temperature=0.0, ignore_eos=True)))
        while loop.has_work:
            loop.step()
            assert loop.last_record is not None and loop.last_record.k_max == 0
        told[policy] = drafter.told
    assert told == {"off": 0, "table": 4}
