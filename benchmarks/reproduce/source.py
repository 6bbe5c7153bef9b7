"""What stands around the tables: verdicts in one place, and where the raw files came from."""

from benchmarks.reproduce.bars import as_good_as_fixed, never_below
from benchmarks.reproduce.controls import every_part_helps
from benchmarks.reproduce.equality import bit_for_bit
from benchmarks.reproduce.library import Library, Results
from benchmarks.reproduce.words import missing, table, verdict
from benchmarks.studies import STUDIES

JUDGES = (
    ("1", "never below plain decoding, well above it for few users", "bars", never_below),
    ("2", "as good as the best fixed tree, better at two concurrencies", "bars", as_good_as_fixed),
    ("3", "each part of the method helps", "controls", every_part_helps),
    ("5", "plain decoding's tokens", "equality", bit_for_bit),
)


def verdicts_block(library: Library) -> str:
    rows = []
    for number, claim, study, judge in JUDGES:
        results = library.study(study)
        met, reason = (None, "not measured yet") if results is None else judge(results)
        rows.append([number, claim, f"**{verdict(met)}**", reason])
    return table(["bar", "claim", "verdict", "why"], rows)


def source_block(library: Library) -> str:
    """When, where and on which commit each study was measured; a row per run that added trials."""
    rows = []
    for name in STUDIES:
        results = library.study(name)
        if results is not None:
            rows += [_session(name, results, index) for index in _used(results)]
    if not rows:
        return "No study has been measured yet."
    return table(["study", "measured (UTC)", "commit", "processor", "instructions", "cores", "torch", "trials"], rows)


def pareto_block(library: Library) -> str:
    if library.study("bars") is None:
        return missing("bars")
    return "![Tokens per second of the batch against milliseconds per token of a request](figures/pareto.svg)"


def _used(results: Results) -> list[int]:
    return sorted({cell["session"] for cell in results.document["cells"]})


def _session(name: str, results: Results, index: int) -> list[str]:
    session = results.document["sessions"][index]
    trials = sum(cell["session"] == index for cell in results.document["cells"])
    machine = session["machine"]
    return [
        f"`{name}`" + (" (quick: a dry run, no measurement)" if results.quick else ""),
        session["timestamp"][:16],
        (session["git_commit"] or "unknown")[:12],
        machine["processor"],
        ((session.get("cost") or {}).get("machine") or {}).get("instructions") or "–",
        str(machine["num_cores"]),
        session["versions"]["torch"],
        str(trials),
    ]
