"""docs/results.md from raw files: the page is what the committed files say, and verdicts are computed."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.reproduce import __main__ as command
from benchmarks.reproduce.__main__ import REPOSITORY, rebuild
from benchmarks.reproduce.bars import as_good_as_fixed, never_below
from benchmarks.reproduce.controls import every_part_helps
from benchmarks.reproduce.equality import bit_for_bit
from benchmarks.reproduce.foresight import foresight_block
from benchmarks.reproduce.intervals import paired_ratio
from benchmarks.reproduce.library import Library, Results
from benchmarks.reproduce.page import fill
from benchmarks.studies import ABLATIONS, PRICED, UNPRICED
from benchmarks.study.file import ResultsFile
from echo_sched.errors import DataError

Speeds = Mapping[tuple[int, str], list[float]]  # (concurrency, arm) -> tokens per second of each repeat

SESSION = {
    "timestamp": "2026-11-30T02:04:16+00:00",
    "git_commit": "0123456789abcdef",
    "machine": {"processor": "made up", "num_cores": 2},
    "versions": {"torch": "2.13.0"},
}


def cell_of(concurrency: int, arm: str, repeat: int, speed: float, forks: list[Any]) -> dict[str, Any]:
    counts = ("decoding_steps", "steps_k_max_zero", "steps_without_draft", "nodes_verified")
    return {
        "block": f"c{concurrency}",
        "concurrency": concurrency,
        "arm": arm,
        "repeat": repeat,
        "tokens": 1000,
        "seconds": 1000 / speed,
        **dict.fromkeys(counts, 10),
        "acceptance_length": 1.5,
        "utilisation": 0.5,
        "requests": {"tpot_ms": [1000 / speed, None], "p95_gap_ms": [1.0, 2.0]},
        "equality": {"num_compared": 4, "forks": forks},
    }


def write(folder: Path, speeds: Speeds, study: str = "bars", quick: bool = False, forks: Any = ()) -> None:
    """A made-up file of a study."""
    levels = dict.fromkeys(level for level, _ in speeds)
    settings = {"shapes": "1=2.1", "k_max": 16, "k_max_rule": "fixed"}
    blocks = {
        f"c{level}": {
            "group": "",
            "concurrency": level,
            "arms": {arm: settings for other, arm in speeds if other == level},
        }
        for level in levels
    }
    head = {"study": study, "quick": quick, "max_new_tokens": 8, "num_warmups": 0, "engine": {}, "profiles": {}}
    results = ResultsFile(folder / f"{study}.json", head | {"prompt_sets": {}, "blocks": blocks}, SESSION)
    for level in levels:
        results.set_reference(f"c{level}", [[1, 2], [3, 4]])
    for (level, arm), values in speeds.items():
        for repeat, speed in enumerate(values):
            results.append([cell_of(level, arm, repeat, speed, list(forks) if arm != "off" else [])])


def read(folder: Path, study: str = "bars") -> Results:
    results = Library(folder).study(study)
    assert results is not None
    return results


def speeds_of(gain: Mapping[int, float], best: float = 0.9, wobble: float = 0.01) -> dict[tuple[int, str], list[float]]:
    """`echo` makes `gain` times what `off` makes, and `1 / best` times what the best tree makes, give or take."""
    arms: dict[tuple[int, str], list[float]] = {}
    for level, factor in gain.items():
        arms[level, "off"] = [100.0, 110.0, 90.0]
        arms[level, "echo"] = [speed * factor * (1 + wobble * turn) for turn, speed in enumerate(arms[level, "off"])]
        arms[level, "best-tree"] = [speed * best for speed in arms[level, "echo"]]
    return arms


# The page as it is committed.


def test_the_committed_page_is_what_the_committed_files_say() -> None:
    docs = REPOSITORY / "docs"
    for path, text in rebuild(REPOSITORY / "benchmarks" / "results", docs).items():
        assert path.is_file(), f"{path} is missing: make reproduce"
        assert path.read_text(encoding="utf-8") == text, f"{path} is not what its raw files say: make reproduce"


def test_without_any_file_the_page_says_what_to_run(tmp_path: Path) -> None:
    (page,) = rebuild(tmp_path, REPOSITORY / "docs").values()
    assert "Not measured yet: `python -m benchmarks.study bars`." in page
    assert page.count("not judged") == 4 and "No study has been measured yet." in page


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    write(tmp_path, speeds_of({1: 1.5, 4: 1.2, 8: 1.0}))
    write(tmp_path, {(4, "off"): [5.0, 5.0], (4, "echo:k_max=16"): [5.0, 6.0]}, "kmax")
    first, second = (rebuild(tmp_path, REPOSITORY / "docs") for _ in range(2))
    assert first == second
    assert {path.name for path in first} == {"results.md", "bars.svg", "pareto.svg", "kmax.svg"}


def test_the_command_writes_what_changed_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    docs, raw = tmp_path / "docs", tmp_path / "raw"
    (docs / "figures").mkdir(parents=True)
    raw.mkdir()
    (docs / "results.md").write_text((REPOSITORY / "docs" / "results.md").read_text())
    write(raw, speeds_of({1: 1.5, 4: 1.2}, wobble=0))
    flags = ["--results", str(raw), "--docs", str(docs)]
    assert command.main(flags) == 0
    assert {path.name for path in (docs / "figures").iterdir()} == {"bars.svg", "pareto.svg"}
    assert "1.50 [1.50, 1.50]" in (docs / "results.md").read_text()
    assert "bars.svg" in capsys.readouterr().out
    assert command.main(flags) == 0
    assert capsys.readouterr().out == '{"changed": []}\n'


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ("<!-- begin generated: a -->\n", "no twin"),
        ("<!-- begin generated: a -->\n<!-- end generated: b -->", "no twin"),
        ("nothing", "differ: a"),
        ("<!-- begin generated: b -->\n<!-- end generated: b -->", "differ: a, b"),
        ("<!-- begin generated: a -->\n<!-- end generated: a -->\n" * 2, "twice"),
    ],
)
def test_a_page_that_does_not_fit_is_refused(page: str, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        fill(page, {"a": "text"})


def test_text_between_the_markers_is_replaced_and_the_rest_stays() -> None:
    page = "before\n<!-- begin generated: a -->\nold\\1\n<!-- end generated: a -->\nafter"
    filled = fill(page, {"a": r"new \1"})
    assert filled == "before\n<!-- begin generated: a -->\nnew \\1\n<!-- end generated: a -->\nafter"
    assert fill(filled, {"a": r"new \1"}) == filled


# Numbers and verdicts.


def test_a_paired_ratio_has_students_interval() -> None:
    ratio = paired_ratio([2.0, 4.0, 8.0], [1.0, 1.0, 1.0])
    assert ratio.mean == pytest.approx(4.0) and ratio.median == 4.0 and ratio.num_repeats == 3
    half = 4.302653 * math.log(2) / math.sqrt(3)  # t(0.975, 2) from tables; the logs are log 2 apart
    assert (ratio.low, ratio.high) == (pytest.approx(4 / math.exp(half)), pytest.approx(4 * math.exp(half)))
    assert paired_ratio([3.0], [2.0]) == (1.5, 1.5, None, None, 1)


def test_pairing_removes_what_a_repeat_does_to_everybody() -> None:
    ratio = paired_ratio([10.0, 20.0, 40.0], [5.0, 10.0, 20.0])
    assert ratio.low == pytest.approx(2.0) and ratio.high == pytest.approx(2.0)


def test_only_repeats_of_both_arms_are_paired(tmp_path: Path) -> None:
    write(tmp_path, {(1, "off"): [100.0, 50.0], (1, "echo"): [150.0]})
    ratio = read(tmp_path).ratio("c1", "echo")
    assert ratio is not None and (ratio.mean, ratio.num_repeats) == (pytest.approx(1.5), 1)


@pytest.mark.parametrize(
    ("gain", "met", "reason"),
    [
        ({1: 1.5, 4: 1.2, 32: 1.0}, True, "as asked"),
        ({1: 1.5, 4: 1.2, 32: 0.93}, False, "below 0.98 at 32"),
        ({1: 1.5, 4: 1.02, 32: 1.0}, False, "not above 1.10 at 4"),
        ({1: 1.5, 32: 1.0}, False, "not above 1.10 at 4"),
    ],
)
def test_bar_1_is_read_from_lower_ends(gain: dict[int, float], met: bool, reason: str, tmp_path: Path) -> None:
    write(tmp_path, speeds_of(gain))
    verdict = never_below(read(tmp_path))
    assert verdict.met is met and reason in verdict.reason


def test_a_mean_above_the_bar_is_not_enough(tmp_path: Path) -> None:
    write(tmp_path, speeds_of({1: 1.5, 4: 1.2, 32: 1.0}, wobble=0.1))
    results = read(tmp_path)
    ratio = results.ratio("c32", "echo")
    assert ratio is not None and ratio.mean > 1.05 and never_below(results).met is False


@pytest.mark.parametrize(
    ("best", "gain", "met"),
    [
        (0.9, {1: 1.5, 4: 1.2}, True),
        (1.1, {1: 1.5, 4: 1.2}, False),
        (0.9, {1: 1.5}, False),
        (1.01, {1: 1.5, 4: 1.2}, False),
    ],
)
def test_bar_2_wants_no_loss_anywhere_and_two_gains(
    best: float, gain: dict[int, float], met: bool, tmp_path: Path
) -> None:
    write(tmp_path, speeds_of(gain, best))
    assert as_good_as_fixed(read(tmp_path)).met is met


def test_too_little_is_not_judged(tmp_path: Path) -> None:
    gain = {1: 1.5, 4: 1.2}
    write(tmp_path, {key: values[:1] for key, values in speeds_of(gain).items()})
    assert never_below(read(tmp_path)).met is None and as_good_as_fixed(read(tmp_path)).met is None
    for unfinished in ((4, "echo"), (4, "best-tree")):
        (tmp_path / "bars.json").unlink()
        write(tmp_path, speeds_of(gain) | {unfinished: []})
        assert as_good_as_fixed(read(tmp_path)).met is None
    (tmp_path / "bars.json").unlink()
    write(tmp_path, speeds_of(gain), quick=True)
    assert never_below(read(tmp_path)).met is None and as_good_as_fixed(read(tmp_path)).met is None


@pytest.mark.parametrize(("useless", "met"), [(None, True), ("transfer=off", False)])
def test_bar_3_asks_every_part_without_a_price(useless: str | None, met: bool, tmp_path: Path) -> None:
    speeds: dict[tuple[int, str], list[float]] = {(8, "off"): [100.0, 100.0, 100.0]}
    for base in (UNPRICED, PRICED):
        speeds[8, base] = [120.0, 121.0, 122.0]
        for ablation in ABLATIONS:
            lost = 0.9 if base == UNPRICED and ablation != useless else 1.0
            speeds[8, f"{base}:{ablation}"] = [120.0 * lost, 121.0 * lost, 122.0 * lost]
    write(tmp_path, speeds, "controls")
    found, reason = every_part_helps(read(tmp_path, "controls"))
    assert found is met and (useless or "above 1") in reason


@pytest.mark.parametrize(("forks", "met"), [((), True), (([0, 3, 5, 6, 0.1],), False)])
def test_bar_5_wants_every_token(forks: Any, met: bool, tmp_path: Path) -> None:
    write(tmp_path, {(4, "off"): [1.0], (4, "echo"): [1.0], (4, "goodput"): [1.0]}, "equality", forks=forks)
    results = read(tmp_path, "equality")
    assert bit_for_bit(results)[0] is met
    assert results.share_equal("c4", "echo") == (1.0 if met else 0.75) and results.share_equal("c4", "off") is None


def test_the_control_is_plain_decoding_at_the_next_concurrency(tmp_path: Path) -> None:
    write(tmp_path, {(level, "off"): [1.0] for level in (1, 4, 8)})
    results = read(tmp_path)
    results.document["references"]["c8"] = [[1, 2], [3, 5], [6, 7]]
    assert [results.control(f"c{level}") for level in (1, 4, 8)] == [1.0, 0.5, 0.5]


def test_shares_of_foresight_come_from_a_simulation(tmp_path: Path) -> None:
    assert "Not simulated yet" in foresight_block(Library(tmp_path))
    rules = '{"equal_split": 4.0, "random": 2.0, "clairvoyant": 8.0}'
    arm = '{"accepted_per_step": 6.0, "share": 0.5}'
    cell = f'{{"accepted_per_step": {rules}, "arms": {{"echo": {arm}}}}}'
    (tmp_path / "simulate.json").write_text(f'{{"arms": {{"echo": {{}}}}, "clairvoyant": {{"8": {{"0.5": {cell}}}}}}}')
    assert "| 8 | 0.5 | 4.0 | 2.0 | 8.0 | 6.0 (50 %) |" in foresight_block(Library(tmp_path))
