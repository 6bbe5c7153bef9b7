"""Draws a simulation: speed, and pace of single requests, by concurrency. Knows the JSON document alone."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from echo_sched.plots import COLOURS, draw_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def simulation_svg(document: dict[str, Any]) -> str:
    """One line per arm."""
    return draw_svg(2, lambda panels: _draw(document["arms"], panels))


def _draw(arms: dict[str, dict[str, Any]], panels: Sequence["Axes"]) -> None:
    speed, pace = panels
    for number, (arm, cells) in enumerate(arms.items()):
        concurrencies, colour = [int(name) for name in cells], COLOURS[number % len(COLOURS)]
        speed.plot(concurrencies, [cell["output_throughput"] for cell in cells.values()], "o-", color=colour, label=arm)
        tpot = [cell["latency_ms"]["tpot"] for cell in cells.values()]
        pace.plot(concurrencies, [wait and wait["p95"] for wait in tpot], "o-", color=colour)
    speed.set_title("Output tokens per second")
    pace.set_title("Milliseconds per output token, 95th percentile")
    for panel in panels:
        panel.set_xscale("log", base=2)
        panel.set_xlabel("requests at once")
        panel.set_ylim(bottom=0)
    speed.legend()
