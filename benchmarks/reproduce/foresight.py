"""What `echo-sched simulate` says of clairvoyance: how much of what foresight could gain each policy gains."""

from benchmarks.reproduce.library import Library
from benchmarks.reproduce.words import number, percent, table

RULES = ("equal_split", "random", "clairvoyant")


def foresight_block(library: Library) -> str:
    document = library.simulation()
    if document is None:
        return "Not simulated yet: `echo-sched simulate TRACE --output benchmarks/results/simulate.json`."
    arms = list(document["arms"])
    rows = [
        [
            concurrency,
            budget,
            *(number(cell["accepted_per_step"][rule], 1) for rule in RULES),
            *(
                f"{number(cell['arms'][arm]['accepted_per_step'], 1)} ({percent(cell['arms'][arm]['share'])})"
                for arm in arms
            ),
        ]
        for concurrency, budgets in document["clairvoyant"].items()
        for budget, cell in budgets.items()
    ]
    return "\n\n".join(
        [
            "Accepted tokens per step on the same recorded candidates at the same `K_max`; in brackets the share "
            "(policy - equal split) / (clairvoyant - equal split):",
            table(
                ["concurrency", "`K_max` / B", "equal split", "random", "clairvoyant", *(f"`{a}`" for a in arms)], rows
            ),
            "Bar 4 names no number to reach: these are the shares.",
        ]
    )
