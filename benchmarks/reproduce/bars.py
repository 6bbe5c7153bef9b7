"""The study `bars`: the default policy against plain decoding and against the best fixed tree, at every concurrency."""

from typing import NamedTuple

from benchmarks.reproduce.library import Library, Results
from benchmarks.reproduce.words import missing, number, percent, ratio, table, verdict
from benchmarks.study.cell import steady_speed
from echo_sched.arms import REFERENCE

STUDY = "bars"
DEFAULT, BEST = "echo", "best-tree"
NEVER_BELOW = 0.98
LOW_LOADS, LOW_LOAD_GAIN = (1, 4), 1.10
NUM_BETTER = 2  # concurrencies at which the default policy must beat the best tree


class Verdict(NamedTuple):
    met: bool | None  # None: it cannot be judged yet
    reason: str


def never_below(results: Results) -> Verdict:
    """Bar 1."""
    lows = _lower_ends(results, REFERENCE)
    if lows is None:
        return Verdict(None, "not every arm has run often enough")
    below = [level for level, low in lows.items() if low < NEVER_BELOW]
    slow = [level for level in LOW_LOADS if lows.get(level, 0.0) <= LOW_LOAD_GAIN]
    reasons = [f"below {NEVER_BELOW} at {_listed(below)}"] * bool(below)
    reasons += [f"not above {LOW_LOAD_GAIN:.2f} at {_listed(slow)}"] * bool(slow)
    return Verdict(not reasons, "; ".join(reasons) or "lower ends as asked at every concurrency")


def as_good_as_fixed(results: Results) -> Verdict:
    """Bar 2."""
    lows = _lower_ends(results, BEST)
    if lows is None:
        return Verdict(None, "not every arm has run often enough")
    below = [level for level, low in lows.items() if low < NEVER_BELOW]
    better = [level for level, low in lows.items() if low > 1]
    reasons = [f"below {NEVER_BELOW} of the best tree at {_listed(below)}"] * bool(below)
    reasons += [f"better at {_listed(better) or 'none'}"]
    return Verdict(not below and len(better) >= NUM_BETTER, "; ".join(reasons))


def bars_block(library: Library) -> str:
    results = library.study(STUDY)
    if results is None:
        return missing(STUDY)
    levels = results.of_group("")
    others = [arm for arm in results.arms if arm != REFERENCE]
    measured = {level: block for level, block in levels.items() if results.cells(block, REFERENCE)}
    speeds = [
        [str(level), number(results.speed(block, REFERENCE), 0), *(ratio(results.ratio(block, arm)) for arm in others)]
        for level, block in measured.items()
    ]
    steady = [
        [str(level), *(ratio(results.ratio(block, arm, speed=steady_speed)) for arm in others)]
        for level, block in measured.items()
    ]
    against = [
        [
            str(level),
            results.blocks[block]["arms"].get(BEST, {}).get("shapes", "").removeprefix("1="),
            ratio(results.ratio(block, DEFAULT, BEST)),
        ]
        for level, block in levels.items()
    ]
    return "\n\n".join(
        [
            f"Tokens per second over `{REFERENCE}`'s, mean of {_num_repeats(results)} repeats [95 % interval]:",
            table(["concurrency", f"`{REFERENCE}`, tokens/s", *(f"`{arm}`" for arm in others)], speeds),
            "The same from the first request's end until a client is left without a request, where there are two waves "
            "of requests or more:",
            table(["concurrency", *(f"`{arm}`" for arm in others)], steady),
            f"`{DEFAULT}` over the best fixed tree:",
            table(["concurrency", "best tree", f"`{DEFAULT}` / best tree"], against),
            "What the arms did, per repeat:",
            table(DETAILS, _details(results)),
            f"Bar 1, {verdict(never_below(results).met)}: {never_below(results).reason}. "
            f"Bar 2, {verdict(as_good_as_fixed(results).met)}: {as_good_as_fixed(results).reason}.",
            "![Tokens per second over plain decoding's, by concurrency](figures/bars.svg)",
        ]
    )


DETAILS = [
    "concurrency", "arm", "steps", "of those with `K_max` 0", "without a draft", "nodes", "acceptance length",
    "utilisation", "TPOT, ms", "p95 gap, ms",
]  # fmt: skip


def _details(results: Results) -> list[list[str]]:
    rows = []
    for level, block in results.of_group("").items():
        for arm in results.arms:
            if not results.cells(block, arm):
                continue
            steps = results.total(block, arm, "decoding_steps")
            zero = results.total(block, arm, "steps_k_max_zero") / steps if steps else None
            without = results.total(block, arm, "steps_without_draft") / steps if steps else None
            counts = [number(results.total(block, arm, "nodes_verified"), 0)]
            counts += [number(results.total(block, arm, name)) for name in ("acceptance_length", "utilisation")]
            pace = [number(results.requests(block, arm, column), 1) for column in ("tpot_ms", "p95_gap_ms")]
            rows.append([str(level), f"`{arm}`", number(steps, 0), percent(zero), percent(without), *counts, *pace])
    return rows


def _lower_ends(results: Results, over: str) -> dict[int, float] | None:
    """Of the default policy's ratios, by concurrency; None where one is missing, or the file is of a dry run."""
    ratios = {level: results.ratio(block, DEFAULT, over) for level, block in results.of_group("").items()}
    lows = {level: value.low for level, value in ratios.items() if value is not None and value.low is not None}
    return None if results.quick or len(lows) < len(ratios) else lows


def _num_repeats(results: Results) -> int:
    return max((cell["repeat"] + 1 for cell in results.document["cells"]), default=0)


def _listed(levels: list[int]) -> str:
    return ", ".join(map(str, levels))
