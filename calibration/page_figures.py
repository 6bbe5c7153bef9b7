"""Figures of calibration's page, as SVG elements that can stand inside HTML.

Knows fitted values and readings; nothing of the page.
"""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from calibration.result import Calibration
from calibration.throughput import BucketFit
from echo_sched.plots import COLOURS, draw_svg
from echo_sched.scheduler.separation import auc
from echo_sched.tree import BoolArray, FloatArray
from echo_sched.types import GateReading

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PER_ROW = 3  # panels side by side
NUM_BINS = 25  # of a histogram
NUM_GROUPS = 10  # of equal size, of a reliability curve
MIN_GROUP = 10  # fewer nodes make no point


class Labelled:
    """Values with what became of them. Arrays [n]."""

    def __init__(self, values: Sequence[float], accepted: Sequence[bool]) -> None:
        self.values: FloatArray = np.array(values, np.float64)
        self.accepted: BoolArray = np.array(accepted, np.bool_)


def inline(svg: str) -> str:
    """The <svg> element alone: no XML header, no document type, no metadata, nothing that names another place."""
    element = svg[svg.index("<svg") :]
    return re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)


def confidence_histograms(found: Calibration) -> str:
    """Confidence of accepted and of rejected readings, a panel per depth."""

    def draw(axes: "Axes", depth: int) -> None:
        read = _at(found.readings, depth)
        edges = np.linspace(0.0, max(read.values.max(), 1e-9), NUM_BINS + 1)
        for name, rows, colour in (("accepted", read.accepted, 0), ("rejected", ~read.accepted, 1)):
            axes.hist(
                read.values[rows], edges.tolist(), color=COLOURS[colour], alpha=0.6, label=f"{name} ({rows.sum()})"
            )
        axes.set(title=f"depth {depth}", xlabel="confidence", ylabel="readings")
        _legend(axes)

    return _rows([depth.depth for depth in found.fit.depths], draw)


def roc_curves(found: Calibration) -> str:
    """Every depth: all readings, and those whose path reached the depth above."""
    reached = {(r.request_id, r.step, r.depth) for r in found.readings if r.accepted}
    passed = [r for r in found.readings if r.depth == 1 or (r.request_id, r.step, r.depth - 1) in reached]

    def draw(panels: Sequence["Axes"]) -> None:
        titles = ("all readings", "path reached the depth above")
        for axes, title, readings in zip(panels, titles, (found.readings, passed), strict=True):
            for number, depth in enumerate(row.depth for row in found.fit.depths):
                _roc(axes, _at(readings, depth), depth, **_line(number))
            axes.plot([0, 1], [0, 1], color="#999999", linewidth=0.8)
            axes.set(title=title, xlabel="rejected let through", ylabel="accepted let through", aspect="equal")
            _legend(axes, "lower right")

    return inline(draw_svg(2, draw))


def reliability_curves(found: Calibration) -> str:
    """What path probabilities and their calibrated chances came to, per depth."""

    def draw(panels: Sequence["Axes"]) -> None:
        for number, depth in enumerate(row.depth for row in found.fit.depths):
            nodes = [node for node in found.nodes if node.depth == depth]
            seen = Labelled(np.exp([node.path_logp for node in nodes]).tolist(), [node.accepted for node in nodes])
            panels[0].plot(*_groups(seen), marker="o", label=f"depth {depth}", **_line(number))
        for number, curve in enumerate(found.profile.acceptance):
            panels[1].plot(curve.path_probability, curve.acceptance, label=f"depth {curve.depth}", **_line(number))
        for axes, title in zip(panels, ("nodes, by groups of equal size", "curves in the profile"), strict=True):
            axes.plot([0, 1], [0, 1], color="#999999", linewidth=0.8)
            axes.set(title=title, xlabel="path probability", ylabel="share accepted", aspect="equal")
            _legend(axes, "upper left")

    return inline(draw_svg(2, draw))


def cost_figure(found: Calibration) -> str:
    """Milliseconds by rows, and K_max by batch size."""
    cost = found.profile.cost
    assert cost is not None

    def draw(panels: Sequence["Axes"]) -> None:
        for number, cached in enumerate(cost.cached_tokens):
            seconds = [1000 * row[number] for row in cost.seconds]
            panels[0].plot(cost.num_tokens, seconds, marker="o", label=f"{cached} tokens cached")
        panels[0].set(title="forward", xlabel="rows", ylabel="milliseconds", ylim=(0, None))
        _legend(panels[0])
        panels[1].plot(list(found.chosen_k_max), list(found.chosen_k_max.values()), marker="o")
        panels[1].set_xscale("log", base=2)
        panels[1].set_xticks(list(found.chosen_k_max), labels=list(map(str, found.chosen_k_max)))
        panels[1].set(title="K_max chosen", xlabel="batch size", ylabel="nodes", ylim=(0, None))

    return inline(draw_svg(2, draw))


def acceptance_figure(found: Calibration) -> str:
    """By depth, for all and for each kind of prompt."""

    def draw(panels: Sequence["Axes"]) -> None:
        depths = [row.depth for row in found.fit.depths]
        panels[0].plot(depths, [row.acceptance for row in found.fit.depths], "k-o", label="all")
        shares = [row.conditional.acceptance for row in found.fit.depths]  # None: nobody reached the depth above
        panels[1].plot(depths, [np.nan if share is None else share for share in shares], "k-o")
        for number, kind in enumerate(found.categories):
            known = [(depth, value) for depth, value in enumerate(kind.acceptance, start=1) if value is not None]
            panels[0].plot(*zip(*known, strict=True), marker=".", label=kind.category, **_line(number))
        panels[0].set(
            title="path reached the depth", xlabel="depth", ylabel="share of requests", ylim=(0, 1), xticks=depths
        )
        panels[1].set(title="of those at the depth above", xlabel="depth", ylabel="share", ylim=(0, 1), xticks=depths)
        _legend(panels[0])

    return inline(draw_svg(2, draw))


def threshold_figure(found: Calibration) -> str:
    """Throughput over the thresholds tried, relative to no gate at that depth: a panel per load."""

    def draw(axes: "Axes", number: int) -> None:
        bucket: BucketFit = found.buckets[number]
        for place, (depth, tried) in enumerate(bucket.curves.items()):
            thresholds, rates = zip(*tried, strict=True)
            axes.plot(thresholds, np.array(rates) / rates[0], marker=".", label=f"depth {depth}", **_line(place))
        axes.set(title=f"K_max / B = {bucket.load:g}", xlabel="threshold", ylabel="tokens/s, 1 without this gate")
        _legend(axes)

    return _rows(list(range(len(found.buckets))), draw)


def _rows(items: Sequence[int], draw: "Callable[[Axes, int], None]") -> str:
    """One panel per item, PER_ROW of them side by side."""
    parts = []
    for start in range(0, len(items), PER_ROW):
        row = items[start : start + PER_ROW]

        def fill(panels: Sequence["Axes"], row: Sequence[int] = row) -> None:
            for axes, item in zip(panels, row, strict=False):
                draw(axes, item)
            for axes in panels[len(row) :]:
                axes.set_axis_off()

        parts.append(inline(draw_svg(PER_ROW, fill)))
    return "\n".join(parts)


def _legend(axes: "Axes", place: Literal["best", "lower right", "upper left"] = "best") -> None:
    """Where something is drawn: few readings may leave nothing to draw."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc=place)


def _roc(axes: "Axes", read: Labelled, depth: int, **style: Any) -> None:
    area = auc(read.values, read.accepted)
    if area is None:
        return
    order = np.argsort(-read.values, kind="stable")
    last = np.append(np.diff(read.values[order]) != 0, True)  # equal confidences pass together
    passed = [
        np.concatenate([[0.0], hits[order].cumsum()[last] / hits.sum()]) for hits in (~read.accepted, read.accepted)
    ]
    axes.plot(*passed, label=f"depth {depth}: {area:.3f}", **style)


def _groups(seen: Labelled) -> tuple[list[float], list[float]]:
    parts = [part for part in np.array_split(np.argsort(seen.values), NUM_GROUPS) if part.size >= MIN_GROUP]
    return [float(seen.values[part].mean()) for part in parts], [float(seen.accepted[part].mean()) for part in parts]


def _at(readings: Sequence[GateReading], depth: int) -> Labelled:
    mine = [reading for reading in readings if reading.depth == depth]
    return Labelled([reading.confidence for reading in mine], [reading.accepted for reading in mine])


def _line(number: int) -> dict[str, Any]:
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": ("-", "--", ":")[number // len(COLOURS) % 3]}
