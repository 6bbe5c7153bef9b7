"""Figures of docs/results.md: the same bytes for the same raw files."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from benchmarks.reproduce.intervals import Ratio
from benchmarks.reproduce.library import Library, Results
from echo_sched.arms import REFERENCE
from echo_sched.plots import COLOURS, draw_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GREY = "#999999"


def figures(library: Library) -> dict[str, str]:
    """File name -> SVG text; only those whose raw files are there."""
    wanted: dict[str, tuple[str, Callable[[Results], str]]] = {
        "bars.svg": ("bars", bars_svg),
        "pareto.svg": ("bars", pareto_svg),
        "kmax.svg": ("kmax", kmax_svg),
    }
    found = {name: (library.study(study), draw) for name, (study, draw) in wanted.items()}
    return {name: draw(results) for name, (results, draw) in found.items() if results is not None}


def bars_svg(results: Results) -> str:
    """Tokens per second over plain decoding's, with the intervals, by concurrency."""

    def draw(panels: Sequence["Axes"]) -> None:
        (panel,) = panels
        for arm, colour in zip(_drafting(results), COLOURS, strict=False):
            points = [(level, results.ratio(block, arm)) for level, block in results.of_group("").items()]
            _with_intervals(panel, arm, [(x, value) for x, value in points if value is not None], colour)
        _reference_line(panel)
        panel.set(xscale="log", xlabel="concurrency", ylabel=f"tokens/s over {REFERENCE}'s")
        _whole_ticks(panel, list(results.of_group("")))
        panel.legend(loc="best")

    return draw_svg(1, draw)


def pareto_svg(results: Results) -> str:
    """Tokens per second of the whole batch against milliseconds per token of a request; a point per concurrency."""

    def draw(panels: Sequence["Axes"]) -> None:
        (panel,) = panels
        for arm, colour in zip(results.arms, COLOURS, strict=False):
            points = [
                (results.requests(block, arm, "tpot_ms"), results.speed(block, arm), level)
                for level, block in results.of_group("").items()
                if results.cells(block, arm)
            ]
            if points:
                x, y, levels = zip(*points, strict=True)
                panel.plot(x, y, marker="o", color=colour, label=arm)
                if arm == REFERENCE:
                    for place, level in enumerate(levels):
                        panel.annotate(str(level), (x[place], y[place]), textcoords="offset points", xytext=(3, -9))
        panel.set(xlabel="ms per token of a request (median)", ylabel="tokens/s of the batch", xscale="log")
        panel.legend(loc="lower right")

    return draw_svg(1, draw)


def kmax_svg(results: Results) -> str:
    """A panel per concurrency: fixed K_max without a price, and what `auto` with its price makes of it."""
    levels = results.of_group("")

    def draw(panels: Sequence["Axes"]) -> None:
        for panel, (level, block) in zip(panels, levels.items(), strict=True):
            settings = results.blocks[block]["arms"]
            fixed = [
                (settings[arm]["k_max"], results.ratio(block, arm))
                for arm in _drafting(results)
                if settings[arm]["k_max_rule"] == "fixed"
            ]
            _with_intervals(panel, "fixed", [(x, value) for x, value in fixed if value is not None], COLOURS[0])
            for arm in _drafting(results):
                value = results.ratio(block, arm)
                if settings[arm]["k_max_rule"] == "auto" and value is not None:
                    panel.axhline(value.mean, color=COLOURS[1], linestyle="--", linewidth=1.0, label="auto")
            _reference_line(panel)
            panel.set(title=f"concurrency {level}", xlabel="K_max", ylabel=f"tokens/s over {REFERENCE}'s")
            panel.legend(loc="best")

    return draw_svg(len(levels), draw)


def _drafting(results: Results) -> list[str]:
    return [arm for arm in results.arms if arm != REFERENCE]


def _with_intervals(panel: "Axes", name: str, points: Sequence[tuple[int, Ratio]], colour: str) -> None:
    if not points:
        return
    x = [place for place, _ in points]
    means = [value.mean for _, value in points]
    below = [value.mean - (value.low if value.low is not None else value.mean) for _, value in points]
    above = [(value.high if value.high is not None else value.mean) - value.mean for _, value in points]
    panel.errorbar(x, means, yerr=[below, above], color=colour, marker="o", capsize=2, linewidth=1.2, label=name)


def _reference_line(panel: "Axes") -> None:
    panel.axhline(1.0, color=GREY, linewidth=0.8)


def _whole_ticks(panel: "Axes", levels: Sequence[int]) -> None:
    panel.set_xticks(levels, labels=[str(level) for level in levels])
    panel.minorticks_off()
