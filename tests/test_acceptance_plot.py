"""Reliability plots and the figures below them: what is drawn, and that the same numbers give the same file."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib import rc_context
from matplotlib.figure import Figure

from benchmarks.reliability import Reliability
from benchmarks.reliability_plot import draw_panel, reliability_svg
from echo_sched.errors import ConfigError
from echo_sched.plots import draw_svg, save_text
from tests.test_acceptance import node
from tests.test_import_rules import loaded_by


def tables(num_depths: int = 5) -> dict[str, Any]:
    """At every depth: three nodes of probability 0.75, two of them accepted, and one of 0.25, rejected."""
    reliability = Reliability()
    for depth in range(1, num_depths + 1):
        reliability.add([node("a", depth, 0.75, accepted) for accepted in (True, True, False)])
        reliability.add([node("a", depth, 0.25, False)])
    return reliability.summary()


def cells(found: dict[str, Any]) -> dict[str, Any]:
    return {level: {"acceptance": {"reliability": {"nodes": found}}} for level in ("4", "8")}


ARMS = {
    "off": cells(Reliability().summary()),
    "static": cells(tables()),
    "echo:k_max=0": cells(Reliability().summary()),
}


def test_a_panel_draws_what_was_measured() -> None:
    panel = Figure().subplots()
    draw_panel(panel, "an arm", tables())
    diagonal, *lines = panel.get_lines()
    assert (list(diagonal.get_xdata()), list(diagonal.get_ydata())) == ([0, 1], [0, 1])
    assert [line.get_label() for line in lines] == ["depth 1", "depth 2", "depth 3", "depth 4", "all depths"]
    for line in lines:
        assert list(line.get_xdata()) == [pytest.approx(0.25), pytest.approx(0.75)]
        assert list(line.get_ydata()) == [0.0, pytest.approx(2 / 3)]
    areas = [markers.get_sizes() for markers in panel.collections]
    assert areas[-1][1] == pytest.approx(3 * areas[-1][0]) == pytest.approx(5 * areas[0][1])


def test_one_panel_per_arm_that_may_draft() -> None:
    text = reliability_svg(ARMS)
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("svg")
    words = [element.text for element in root.iter() if element.text]
    assert "static, concurrency 4" in words and "echo:k_max=0, concurrency 4" in words
    assert words.count("no node was verified") == 1
    assert not any("off" in word or "concurrency 8" in word for word in words)


def test_the_same_numbers_give_the_same_file() -> None:
    text = reliability_svg(ARMS)
    with rc_context({"font.size": 30, "axes.facecolor": "red"}):  # somebody's own settings
        assert reliability_svg(ARMS) == text
    assert "<dc:date>" not in text


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    text = draw_svg(2, lambda panels: None)
    save_text(tmp_path / "plot.svg", text)
    assert [path.name for path in tmp_path.iterdir()] == ["plot.svg"]
    assert (tmp_path / "plot.svg").read_text() == text
    with pytest.raises(ConfigError, match="cannot write"):
        save_text(tmp_path / "nothing" / "plot.svg", text)


def test_only_a_plot_loads_matplotlib() -> None:
    loaded = loaded_by("benchmarks.compare")
    assert "echo_sched.plots" in loaded and "matplotlib" not in loaded
