"""The studies that ask one question each: fixed trees, K_max, readiness, temperature, domains."""

from benchmarks.reproduce.bars import NEVER_BELOW
from benchmarks.reproduce.library import Library, Results
from benchmarks.reproduce.words import missing, number, percent, ratio, table
from benchmarks.studies import GRID
from benchmarks.study.resolve import TREE, best_tree, num_nodes
from echo_sched.arms import REFERENCE


def grid_block(library: Library) -> str:
    results = library.study("grid")
    if results is None:
        return missing("grid")
    levels = list(results.with_arm(REFERENCE))
    best = {level: best_tree(results.document, level) for level in levels}
    rows = []
    for arm in results.arms:
        if arm != REFERENCE:
            shape, blocks = arm.removeprefix(TREE), results.with_arm(arm)
            gains = {level: ratio(results.ratio(block, arm)) for level, block in blocks.items()}
            cells = [
                f"**{gains[level]}**" if best[level] == shape else gains.get(level, ratio(None)) for level in levels
            ]
            rows.append([shape, str(num_nodes(shape)), *cells])
    return "\n\n".join(
        [
            "Tokens per second over `off`'s, one repeat, tuning prompts; the best of each concurrency in bold, a dash "
            f"where a step would verify more than {GRID.most_nodes} nodes:",
            table(["children per node at each depth", "nodes", *(f"at {level}" for level in levels)], rows),
        ]
    )


def kmax_block(library: Library) -> str:
    results = library.study("kmax")
    if results is None:
        return missing("kmax")
    return "\n\n".join(
        [
            table(["arm", *(f"at {level}" for level in results.of_group(""))], _ratios_by_level(results)),
            "![Tokens per second over plain decoding's, by K_max](figures/kmax.svg)",
        ]
    )


def ready_block(library: Library) -> str:
    results = library.study("ready")
    if results is None:
        return missing("ready")
    rows = [
        [
            str(level),
            ratio(results.ratio(block, arm)),
            percent(results.total(block, arm, "steps_k_max_zero") / results.total(block, arm, "decoding_steps")),
        ]
        for level, block in results.of_group("").items()
        for arm in results.arms
        if arm != REFERENCE and results.cells(block, arm)
    ]
    return "\n\n".join(
        [
            table(["concurrency", "drafter kept ready / `off`", "steps with `K_max` 0"], rows),
            f"As cheap as `off` where the lower end is at least {NEVER_BELOW}: {_as_cheap(results)}.",
        ]
    )


def groups_block(library: Library, study: str, heading: str) -> str:
    """A study in groups: every arm over `off`, and how its drafts fared."""
    results = library.study(study)
    if results is None:
        return missing(study)
    rows = [
        [
            group,
            str(level),
            f"`{arm}`",
            ratio(results.ratio(block, arm)),
            number(results.total(block, arm, "acceptance_length")),
            number(results.total(block, arm, "utilisation")),
        ]
        for group in results.groups
        for level, block in results.of_group(group).items()
        for arm in results.arms
        if arm != REFERENCE and results.cells(block, arm)
    ]
    return table([heading, "concurrency", "arm", "over `off`", "acceptance length", "utilisation"], rows)


def temperature_block(library: Library) -> str:
    return groups_block(library, "temperature", "temperature")


def domains_block(library: Library) -> str:
    results = library.study("domains")
    text = groups_block(library, "domains", "text")
    if results is None:
        return text
    fitted = [
        f"`@{name}` is {facts['file']} (sha256 {facts['sha256'][:12]}), fitted on {(facts['data'] or {}).get('file')}, "
        f"{(facts['data'] or {}).get('num_prompts')} prompts"
        for name, facts in results.document["profiles"].items()
    ]
    return "\n\n".join([text, "; ".join(fitted) + "."])


def _ratios_by_level(results: Results) -> list[list[str]]:
    levels = results.of_group("")
    return [
        [f"`{arm}`", *(ratio(results.ratio(block, arm)) for block in levels.values())]
        for arm in results.arms
        if arm != REFERENCE
    ]


def _as_cheap(results: Results) -> str:
    (arm,) = (arm for arm in results.arms if arm != REFERENCE)
    values = [results.ratio(block, arm) for block in results.blocks]
    lows = [None if value is None else value.low for value in values]
    if results.quick or None in lows:
        return "not judged"
    return "yes" if all(low is not None and low >= NEVER_BELOW for low in lows) else "no"
