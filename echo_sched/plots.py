"""Figures as SVG files: one style, and the same bytes for the same numbers.

matplotlib is imported when the first figure is drawn, never with this module. Knows nothing of what is drawn.
"""

import os
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echo_sched.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.typing import RcKeyType

PANEL_WIDTH, PANEL_HEIGHT = 4.6, 3.4  # inches
COLOURS = ("#2563a8", "#c2571a", "#3d8b4f", "#8a4fa3", "#a8323e", "#5f6b73")
STYLE: "dict[RcKeyType, Any]" = {
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "lines.linewidth": 1.3,
    "lines.markersize": 3.5,
    "legend.fontsize": 8.0,
    "legend.edgecolor": "none",
    "legend.framealpha": 0.85,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "echo-sched",  # otherwise names inside the file are random
}


def draw_svg(num_panels: int, draw: Callable[[Sequence["Axes"]], None]) -> str:
    """A row of panels that `draw` fills, as the text of an SVG file. The user's own matplotlib settings are ignored."""
    from matplotlib import rc_context, rcdefaults, rcParams
    from matplotlib.figure import Figure

    text = StringIO()
    with rc_context():
        rcdefaults()
        rcParams.update(STYLE)
        figure = Figure(figsize=(PANEL_WIDTH * num_panels, PANEL_HEIGHT), layout="constrained")
        draw(figure.subplots(1, num_panels, squeeze=False)[0])
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def save_text(path: str | Path, text: str) -> None:
    """The file appears whole or not at all. Raises ConfigError where it cannot be written."""
    part = Path(f"{path}.part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
