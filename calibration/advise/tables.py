"""What a person sees of advice, on stderr. Knows the JSON document and nothing of how it came about."""

from typing import Any

from echo_sched.report import console, show_table

SPEED = {"tok/s": "tokens_per_second", "ratio to off": "ratio_to_off"}
COUNTS = {
    "acceptance length": "acceptance_length",
    "utilisation": "draft_utilisation",
    "other siblings": "num_other_siblings",
    "accepted of them": "other_sibling_acceptance",
    "steps": "num_steps",
}
PRUNED = {
    "levels": "num_levels",
    "dropped": "num_dropped_nodes",
    "verified": "num_verified_nodes",
    "accepted": "num_accepted_nodes",
}
DEEPEST_SHOWN = 6


def show(document: dict[str, Any]) -> None:
    """All tables, and each concurrency's advice with its reasons."""
    found = document["concurrency"]
    _show_speeds("Chains", found, "chains")
    _show_speeds("The best chain, and with branches", found, "trees")
    _show_pruning(found)
    _show_commits(document["commit"])
    _show_temperatures(document["temperature"])
    for level, cell in found.items():
        if not cell["off_within_limit"]:
            console.print(f"at concurrency {level} plain decoding itself is above the latency limit", style="yellow")
        console.print(f"at concurrency {level}: {cell['advice']['sentence']}", style="bold", markup=False)
        for reason in cell["advice"]["reasons"]:
            console.print(f"  - {reason}", markup=False)


def _show_speeds(title: str, found: dict[str, Any], part: str) -> None:
    rows = [
        [arm, level, *(row[key] for key in SPEED.values()), _range(row["ratio_to_off_range"]), row["gap_ms_p95"],
         *(row[key] for key in COUNTS.values())]
        for level, cell in found.items() for arm, row in cell[part].items()
    ]  # fmt: skip
    show_table(
        f"{title} (medians; children per node at each depth)",
        ["tree", "at once", *SPEED, "range", "gap ms p95", *COUNTS],
        rows,
    )


def _show_pruning(found: dict[str, Any]) -> None:
    rows = [
        [when, level, *(row[key] for key in SPEED.values()), _range(row["ratio_to_off_range"]),
         *(row[key] for key in PRUNED.values())]
        for level, cell in found.items() for when, row in cell["pruning"].items()
    ]  # fmt: skip
    show_table("Pruning (counts of nodes)", ["when", "at once", *SPEED, "range", *PRUNED], rows)


def _show_commits(commit: dict[str, Any]) -> None:
    rows = [
        [length, level, cell[layout]["microseconds_per_accepted_token"], cell[layout]["num_moved"], layout]
        for level, by_length in commit.items()
        for length, cell in by_length.items()
        for layout in cell
    ]
    show_table(
        "Commit by accepted length", ["accepted", "at once", "us per accepted token", "tokens moved", "layout"], rows
    )


def _show_temperatures(temperatures: dict[str, Any]) -> None:
    depths = [str(depth) for depth in range(1, DEEPEST_SHOWN + 1)]
    rows = [
        [temperature, row["tree"], row["acceptance_length"], *map(row["share_reached"].get, depths)]
        for temperature, row in temperatures.items()
    ]
    show_table(
        "Acceptance by temperature (share of steps whose accepted path reached a depth)",
        ["temperature", "tree", "acceptance length", *(f"depth {depth}" for depth in depths)],
        rows,
    )


def _range(values: list[float]) -> str:
    return "-".join(f"{value:.2f}" for value in values)
