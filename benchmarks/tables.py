"""What a person sees of a comparison, on stderr: its tables, and any output that differs from plain decoding's.

Knows the JSON document of a comparison and nothing of how it came about.
"""

from typing import Any

from echo_sched.arms import REFERENCE
from echo_sched.report import console, show_table

COMPARISON_COLUMNS = {
    "tokens/s": "output_throughput",
    "acceptance length": "acceptance_length",
    "utilisation": "draft_utilisation",
    "steps": "num_steps",
    "nodes": "num_verified_nodes",
}
ACCEPTANCE_COLUMNS = {
    "acceptance length": "length",
    "outside loops": "length_outside_loops",
    "share in loops": "share_in_loops",
}
DEEPEST_SHOWN = 6


def show_comparison(document: dict[str, Any]) -> None:
    """Both tables, and below them what exactness found."""
    exactness = document["exactness"]
    _show_speed(document)
    _show_acceptance(document)
    if control := exactness["control"]:
        low, high = control["concurrency"]
        console.print(
            f"control, {REFERENCE} at {low} against {high}: share equal {control['share_equal']:.3f}, "
            f"largest margin at a fork {control['largest_margin']}"
        )
    if exactness["numerics"] == "exact" and not exactness["equal"]:
        for line in _differences(exactness):
            console.print(line, style="red", markup=False, soft_wrap=True)


def _show_speed(document: dict[str, Any]) -> None:
    exactness = document["exactness"]
    rows = []
    for arm, cells in document["arms"].items():
        for concurrency, cell in cells.items():
            ratio = document["ratios"].get(arm, {}).get(concurrency, {}).get("median")
            equality = exactness["arms"].get(arm, {}).get(concurrency, {})
            found = [equality.get(key) for key in ("share_equal", "largest_margin")]
            rows.append([arm, concurrency, *(cell[key] for key in COMPARISON_COLUMNS.values()), ratio, *found])
    columns = ["arm", "concurrency", *COMPARISON_COLUMNS, f"ratio to {REFERENCE}", "share equal", "largest margin"]
    show_table("Comparison (medians over repeats)", columns, rows)


def _show_acceptance(document: dict[str, Any]) -> None:
    """How good the drafts were; a column per depth: accepted there, of those accepted at the depth above."""
    depths = range(1, DEEPEST_SHOWN + 1)
    rows = []
    for arm, cells in document["arms"].items():
        for concurrency, cell in cells.items():
            acceptance = cell["acceptance"]
            by_depth = [acceptance["by_depth"].get(str(depth), {}).get("conditional_share") for depth in depths]
            rows.append([arm, concurrency, *(acceptance[key] for key in ACCEPTANCE_COLUMNS.values()), *by_depth])
    columns = ["arm", "concurrency", *ACCEPTANCE_COLUMNS, *(f"depth {depth}" for depth in depths)]
    show_table("Drafts (at a depth: accepted there of those accepted at the depth above)", columns, rows)


def _differences(exactness: dict[str, Any]) -> list[str]:
    """One line per output that differs from plain decoding's."""
    places = [
        (f"{arm} at concurrency {concurrency}", cell)
        for arm, cells in exactness["arms"].items()
        for concurrency, cell in cells.items()
    ]
    if control := exactness["control"]:
        places.append((f"{REFERENCE} at concurrency {control['concurrency'][1]}", control))
    return [
        f"error: {place}, repeat {fork['repeat']}: request {fork['request']} differs at output token "
        f"{fork['position']} ({fork['token']} instead of {fork['reference_token']}, margin {fork['margin']})"
        for place, cell in places
        for fork in cell["forks"]
    ]
