"""Reliability plots of a comparison: how much was accepted against how probable the drafter said it was.

Knows the JSON document of a comparison and nothing of how it came about.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.arms import REFERENCE
from benchmarks.reliability import ALL_DEPTHS
from echo_sched.plots import COLOURS, draw_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DEPTHS_DRAWN = ("1", "2", "3", "4")
BLACK, GREY = "#222222", "#999999"
LARGEST_MARKER = 150.0  # square points, of the fullest bin of a panel; the others' areas follow their counts


def reliability_svg(arms: dict[str, dict[str, Any]]) -> str:
    """A panel per arm that may draft, at its first concurrency level. `arms` is the document's, with one such arm."""
    drafting = {arm: cells for arm, cells in arms.items() if arm != REFERENCE}

    def draw(panels: Sequence["Axes"]) -> None:
        for panel, (arm, cells) in zip(panels, drafting.items(), strict=True):
            concurrency, cell = next(iter(cells.items()))
            draw_panel(panel, f"{arm}, concurrency {concurrency}", cell["acceptance"]["reliability"]["nodes"])

    return draw_svg(len(drafting), draw)


def draw_panel(panel: "Axes", title: str, tables: dict[str, Any]) -> None:
    """The diagonal, where every probability means what it says, one line per depth, and one for all depths."""
    panel.set(title=title, xlabel="path probability", ylabel="share accepted", xlim=(-0.02, 1.02), ylim=(-0.04, 1.04))
    panel.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=0.8)
    fullest = max(tables[ALL_DEPTHS]["count"])
    if not fullest:
        panel.text(0.5, 0.5, "no node was verified", ha="center", va="center")
        return
    for depth, colour in zip(DEPTHS_DRAWN, COLOURS, strict=False):
        if depth in tables:
            _line(panel, f"depth {depth}", tables[depth], colour, LARGEST_MARKER / fullest)
    _line(panel, "all depths", tables[ALL_DEPTHS], BLACK, LARGEST_MARKER / fullest)
    panel.legend(loc="upper left")


def _line(panel: "Axes", name: str, table: dict[str, Any], colour: str, area_per_node: float) -> None:
    columns = zip(table["mean_probability"], table["share_accepted"], table["count"], strict=True)
    points = [(x, y, count * area_per_node) for x, y, count in columns if count]
    x, y, areas = zip(*points, strict=True)
    panel.plot(x, y, color=colour, label=name)
    panel.scatter(x, y, s=areas, color=colour, alpha=0.5, linewidths=0)
