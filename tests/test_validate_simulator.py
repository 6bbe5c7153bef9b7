"""A simulation held against a measurement: ratios, rankings, ties, and files that did different work."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.validate_simulator import judged, main, paired
from echo_sched.errors import ConfigError, DataError

SPEEDS = {"off": {"4": 100.0, "16": 200.0}, "echo": {"4": 120.0, "16": 190.0}}


def document(factor: float = 1.0) -> dict[str, Any]:
    """Two arms at two concurrencies; repeats differ by 2 %."""
    cells = {
        arm: {
            level: {
                "output_throughput": factor * speed,
                "output_throughput_spread": [0.99 * factor * speed, 1.01 * factor * speed],
                "num_output_tokens": 640,
                "num_prompt_tokens": 99,
                "num_steps": 50,
            }
            for level, speed in levels.items()
        }
        for arm, levels in SPEEDS.items()
    }
    return {"arms": cells, "settings": {arm: {"policy": arm, "k_max": 32, "max_depth": 8} for arm in SPEEDS}}


def test_ratios_and_rankings_of_a_good_simulation() -> None:
    found = judged(paired([document()], [document(1.05)]), 0.1)
    assert found["within_tolerance"] and found["same_rankings"] and found["num_cells"] == 4
    assert found["ratios"]["echo"]["16"]["ratio"] == pytest.approx(1.05) == found["worst_ratio"]
    assert found["rankings"]["4"]["measured"] == ["echo", "off"] and found["rankings"]["16"]["measured"][0] == "off"
    assert not judged(paired([document()], [document(1.15)]), 0.1)["within_tolerance"]
    assert not judged(paired([document()], [document(0.85)]), 0.1)["within_tolerance"]


def test_a_swapped_pair_is_named_unless_the_repeats_overlap() -> None:
    simulated = document()
    simulated["arms"]["echo"]["4"]["output_throughput"] = 99.0
    found = judged(paired([document()], [simulated]), 0.3)
    assert found["rankings"]["4"]["swapped"] == [["off", "echo"]] and not found["same_rankings"]
    assert found["ratios"]["echo"]["4"]["gain_ratio"] == pytest.approx(99.0 / 120.0)
    noisy = document()
    noisy["arms"]["echo"]["4"]["output_throughput_spread"] = [90.0, 150.0]
    tied = judged(paired([noisy], [simulated]), 0.3)
    assert tied["rankings"]["4"]["swapped_but_tied"] == [["off", "echo"]] and tied["same_rankings"]


def test_of_several_files_the_mean_is_held_against_the_other_mean() -> None:
    slow, fast = document(0.8), document(1.25)
    found = judged(paired([slow, fast], [document(), fast, slow]), 0.1)
    cell = found["ratios"]["echo"]["4"]
    assert cell["ratio"] == pytest.approx(1.0)
    assert cell["measurements"] == [96.0, 150.0] and cell["simulations"] == [120.0, 150.0, 96.0]
    assert found["within_tolerance"] and found["same_rankings"]
    assert cell["gain_ratio"] == pytest.approx(1.0)
    other = document()
    other["arms"]["off"]["4"]["num_output_tokens"] = 1
    with pytest.raises(ConfigError, match="off at concurrency 4: num_output_tokens"):
        paired([document()], [document(), other])


def test_other_settings_or_other_work_are_refused() -> None:
    other = document()
    other["settings"]["echo"]["k_max"] = 64
    with pytest.raises(ConfigError, match="arm echo: k_max is 32 in the first file and 64 in another"):
        paired([document()], [other])
    other = document()
    other["settings"]["off"]["max_depth"] = 4  # plain decoding has no trees
    assert len(paired([document()], [other])) == 4
    other["arms"]["off"]["4"]["num_prompt_tokens"] = 98
    with pytest.raises(ConfigError, match=r"off at concurrency 4: num_prompt_tokens is 99 .* and 98 in another"):
        paired([document()], [other])
    with pytest.raises(ConfigError, match="no arm at the same concurrency"):
        paired([document()], [{"arms": {"off": {"5": {}}}, "settings": {}}])


def test_from_two_files_to_a_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured, simulated, out = (tmp_path / name for name in ("measured.json", "simulated.json", "out.json"))
    measured.write_text(json.dumps(document()))
    near = copy.deepcopy(document(0.95))
    simulated.write_text(json.dumps(near))
    files = ["--measured", str(measured), "--simulated", str(simulated)]
    assert main([*files, "--output", str(out)]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["worst_ratio"] == pytest.approx(0.95)
    assert json.loads(out.read_text())["ratios"]["off"]["4"]["within_tolerance"]
    assert "ranking at 16" in captured.err and "Simulated against measured" in captured.err
    assert main([*files, "--tolerance", "0.01"]) == 1


def test_what_is_no_document_is_one_line(tmp_path: Path) -> None:
    for text in ("", "[]", '{"arms": {}}'):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(DataError, match=r"bad\.json"):
            main(["--measured", str(tmp_path / "bad.json"), "--simulated", str(tmp_path / "bad.json")])
