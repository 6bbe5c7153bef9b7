"""The curve of a training run as one SVG file: loss on the left, held-out accuracy per unrolled step on the right.

Knows only the rows of a curve.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from echo_sched.plots import COLOURS, draw_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = Sequence[dict[str, Any]]


def curve_svg(curve: Curve) -> str:
    """Both panels, for a curve with at least one held-out row."""

    def draw(panels: Sequence["Axes"]) -> None:
        draw_loss(panels[0], curve)
        draw_accuracy(panels[1], curve)

    return draw_svg(2, draw)


def draw_loss(panel: "Axes", curve: Curve) -> None:
    trained, scores = [row for row in curve if "loss" in row], _scores(curve)
    panel.set(title="loss (nats)", xlabel="optimizer steps")
    panel.plot(_steps(trained), [row["loss"] for row in trained], color=COLOURS[0], label="training")
    panel.plot(_steps(scores), [row["held_out_loss"] for row in scores], "o-", color=COLOURS[1], label="held out")
    panel.legend()


def draw_accuracy(panel: "Axes", curve: Curve) -> None:
    """A line per unrolled step, and one for how often the right token is among the first step's best eight."""
    scores = _scores(curve)
    lines = {
        f"step {step + 1}": [row["accuracy"][step] for row in scores] for step in range(len(scores[0]["accuracy"]))
    }
    lines["top 8 at step 1"] = [row["accuracy_top"] for row in scores]
    panel.set(title="held-out accuracy", xlabel="optimizer steps")
    for index, (name, values) in enumerate(lines.items()):
        panel.plot(_steps(scores), values, "o-", color=COLOURS[index % len(COLOURS)], label=name)
    panel.legend()


def _scores(curve: Curve) -> list[dict[str, Any]]:
    return [row for row in curve if "accuracy" in row]


def _steps(rows: Curve) -> list[int]:
    return [row["step"] for row in rows]
