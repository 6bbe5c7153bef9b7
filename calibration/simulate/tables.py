"""What a person sees of a simulation, on stderr. Knows the JSON document and nothing of how it came about."""

from typing import Any

from echo_sched.report import show_table

SPEED_COLUMNS = {
    "tokens/s": "output_throughput",
    "acceptance length": "acceptance_length",
    "utilisation": "draft_utilisation",
    "nodes": "num_verified_nodes",
    "K_max 0": "share_k_max_zero",
    "K_max switches": "num_k_max_switches",
    "share cut": "share_cut",
}
LATENCIES = ("ttft", "tpot", "itl")
PERCENTILES = ("p50", "p95", "p99")


def show_figures(document: dict[str, Any]) -> None:
    """Speed, and then latency and fairness."""
    found = [(arm, *pair) for arm, by_concurrency in document["arms"].items() for pair in by_concurrency.items()]
    speed, latency = [], []
    for arm, concurrency, cell in found:
        ratio = document["ratios"].get(arm, {}).get(concurrency)
        speed.append([arm, concurrency, ratio, *(cell[key] for key in SPEED_COLUMNS.values())])
        waits = [cell["latency_ms"][kind] or {} for kind in LATENCIES]
        latency.append(
            [arm, concurrency, *(wait.get(name) for wait in waits for name in PERCENTILES), cell["fairness"]]
        )
    show_table(
        "Simulation (by the cost table's clock)", ["policy", "concurrency", "ratio to off", *SPEED_COLUMNS], speed
    )
    columns = [f"{kind} {name}" for kind in LATENCIES for name in PERCENTILES]
    show_table(
        "Latency in ms, and Jain's fairness of requests' speeds",
        ["policy", "concurrency", *columns, "fairness"],
        latency,
    )


def show_clairvoyant(document: dict[str, Any]) -> None:
    """Columns are K_max / B. Above what every rule accepts, below what share of the possible gain that is."""
    accepted, shares, budgets = [], [], list[str]()
    for concurrency, found in document["clairvoyant"].items():
        cells, budgets = list(found.values()), list(found)
        for rule in cells[0]["accepted_per_step"] if cells else ():
            accepted.append([rule.replace("_", " "), concurrency, *(cell["accepted_per_step"][rule] for cell in cells)])
        for arm in cells[0]["arms"] if cells else ():
            accepted.append([arm, concurrency, *(cell["arms"][arm]["accepted_per_step"] for cell in cells)])
            shares.append([arm, concurrency, *(cell["arms"][arm]["share"] for cell in cells)])
    columns = ["concurrency", *(f"K_max/B {budget}" for budget in budgets)]
    show_table("Accepted tokens per step, nodes without a price", ["rule", *columns], accepted)
    show_table("Share of the clairvoyant gain over an equal split", ["policy", *columns], shares)
