"""What a person sees of a simulation, on stderr. Knows the JSON document and nothing of how it came about."""

from typing import Any

from echo_sched.report import show_table

COLUMNS = {
    "tokens/s": "output_throughput",
    "acceptance length": "acceptance_length",
    "utilisation": "draft_utilisation",
    "nodes": "num_verified_nodes",
    "K_max 0": "share_k_max_zero",
    "K_max switches": "num_k_max_switches",
    "fairness": "fairness",
    "share cut": "share_cut",
}


def show_figures(document: dict[str, Any]) -> None:
    rows = []
    for arm, cells in document["arms"].items():
        for concurrency, cell in cells.items():
            ratio = document["ratios"].get(arm, {}).get(concurrency)
            seconds = [*cell["step_seconds"].values(), *cell["request_seconds"].values()]
            rows.append([arm, concurrency, ratio, *(cell[key] for key in COLUMNS.values()), *seconds])
    latencies = [f"{name} {percentile}" for name in ("step s", "request s") for percentile in ("p50", "p95", "p99")]
    columns = ["policy", "concurrency", "ratio to off", *COLUMNS, *latencies]
    show_table("Simulation (seconds are the cost table's)", columns, rows)


def show_clairvoyant(document: dict[str, Any]) -> None:
    """Accepted tokens per step; behind each policy its share of what foresight gains over an equal split."""
    for concurrency, budgets in document["clairvoyant"].items():
        rows = []
        for budget, cell in budgets.items():
            rules = cell["accepted_per_step"]
            found = [value for arm in cell["arms"].values() for value in (arm["accepted_per_step"], arm["share"])]
            rows.append([budget, *(rules[name] for name in ("equal_split", "random", "clairvoyant")), *found])
        if not rows:
            continue
        arms = [word for arm in next(iter(budgets.values()))["arms"] for word in (arm, "share")]
        title = f"Accepted tokens per step of {concurrency} requests, without a price on nodes"
        show_table(title, ["K_max / B", "equal split", "random", "clairvoyant", *arms], rows)
