"""The curve of a training run as one SVG file: loss on the left, held-out accuracy per unrolled step on the right.

Self-contained, no plotting library. Knows only the rows of a curve.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

WIDTH, HEIGHT, MARGIN = 460, 320, 52
COLOURS = ("#2563a8", "#c2571a", "#3d8b4f", "#8a4fa3", "#a8323e", "#5f6b73")
NUM_TICKS = 5
LAST_LEGEND = 40  # pixels that the last name of a legend may need beyond an equal share
STYLE = "text{font:12px sans-serif;fill:#333}.title{font-size:14px;font-weight:bold}line{stroke:#ddd}"

Points = Sequence[tuple[float, float]]


class Series(NamedTuple):
    """One line of a panel."""

    name: str
    points: Points
    marked: bool = False  # with a dot at each point


def curve_svg(curve: Sequence[dict[str, Any]]) -> str:
    """Both panels, for a curve with at least one held-out row."""
    scores = [row for row in curve if "accuracy" in row]
    trained = [(row["step"], row["loss"]) for row in curve if "loss" in row]
    num_steps = len(scores[0]["accuracy"])
    accuracy = [
        Series(f"step {step + 1}", [(row["step"], row["accuracy"][step]) for row in scores], True)
        for step in range(num_steps)
    ]
    accuracy.append(Series("top 8 at step 1", [(row["step"], row["accuracy_top"]) for row in scores], True))
    loss = [
        Series("training", trained),
        Series("held out", [(row["step"], row["held_out_loss"]) for row in scores], True),
    ]
    panels = _panel(0, "loss (nats)", loss), _panel(WIDTH, "held-out accuracy", accuracy)
    size = f'width="{2 * WIDTH}" height="{HEIGHT}" viewBox="0 0 {2 * WIDTH} {HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style>'
    paper = '<rect width="100%" height="100%" fill="#fff"/>'
    return "\n".join([head, paper, *panels, "</svg>\n"])


def _panel(left: float, title: str, series: Sequence[Series]) -> str:
    points = [point for line in series for point in line.points]
    x_scale = _scale([x for x, _ in points], left + MARGIN, left + WIDTH - 16)
    y_scale = _scale([y for _, y in points], HEIGHT - MARGIN, MARGIN)
    parts = [f'<text class="title" x="{left + MARGIN}" y="24">{title}</text>']
    for value, y in _ticks(y_scale):
        parts.append(f'<line x1="{left + MARGIN}" y1="{y:.1f}" x2="{left + WIDTH - 16}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{left + MARGIN - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>')
    for value, x in _ticks(x_scale):
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - MARGIN + 18}" text-anchor="middle">{value:.0f}</text>')
    parts.append(f'<text x="{left + WIDTH / 2}" y="{HEIGHT - 10}" text-anchor="middle">optimizer steps</text>')
    legend_step = (WIDTH - MARGIN - LAST_LEGEND) / len(series)
    for index, line in enumerate(series):
        parts += _line(line, COLOURS[index % len(COLOURS)], x_scale, y_scale)
        parts.append(_legend(line.name, COLOURS[index % len(COLOURS)], left + MARGIN + index * legend_step))
    return "\n".join(parts)


class Scale(NamedTuple):
    """A linear map from [low, high] to pixels [start, end]."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def _scale(values: Sequence[float], start: float, end: float) -> Scale:
    low, high = min(values), max(values)
    return Scale(low, high if high > low else low + 1.0, start, end)


def _ticks(scale: Scale) -> list[tuple[float, float]]:
    """(value, pixel) at equal distances."""
    values = [scale.low + (scale.high - scale.low) * tick / (NUM_TICKS - 1) for tick in range(NUM_TICKS)]
    return [(value, scale(value)) for value in values]


def _line(line: Series, colour: str, x_scale: Scale, y_scale: Scale) -> list[str]:
    places = [(x_scale(x), y_scale(y)) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in places] if line.marked else []
    return [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>', *dots]


def _legend(name: str, colour: str, x: float) -> str:
    return f'<rect x="{x:.1f}" y="34" width="9" height="9" fill="{colour}"/><text x="{x + 13:.1f}" y="43">{name}</text>'
