"""The studies that change one part of `echo` at a time: `controls`, its price aside and with it, and `learning`."""

from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.reproduce.intervals import Ratio
from benchmarks.reproduce.library import Library, Results
from benchmarks.reproduce.words import missing, number, ratio, table, verdict
from benchmarks.studies import ABLATIONS, LEARNED, PRICED, PRICED_ABLATIONS, UNPRICED

STUDY = "controls"
BASES = {"price off, `K_max` fixed": UNPRICED, "price on": PRICED}


class Control(NamedTuple):
    ablation: str
    setting: str
    concurrency: int
    value: Ratio | None  # the whole policy over the policy without this part

    @property
    def helps(self) -> bool | None:
        """The interval lies above 1; None where there is none."""
        return None if self.value is None or self.value.low is None else self.value.low > 1


def controls(results: Results) -> Iterator[Control]:
    for ablation in ABLATIONS:
        for setting, base in BASES.items():
            if base == PRICED and ablation not in PRICED_ABLATIONS:
                continue
            for concurrency, block in results.of_group("").items():
                yield Control(ablation, setting, concurrency, results.ratio(block, base, f"{base}:{ablation}"))


def every_part_helps(results: Results) -> tuple[bool | None, str]:
    """Bar 3, read where nothing has a price, since there the gate alone decides: each part, at every concurrency."""
    unpriced = [control for control in controls(results) if control.setting == next(iter(BASES))]
    if results.quick or any(control.helps is None for control in unpriced):
        return None, "too few repeats"
    useless = dict.fromkeys(control.ablation for control in unpriced if not control.helps)
    return not useless, (f"no gain shown over {', '.join(useless)}" if useless else "every interval lies above 1")


def controls_block(library: Library) -> str:
    results = library.study(STUDY)
    if results is None:
        return missing(STUDY)
    rows = [
        [f"`{control.ablation}`", control.setting, str(control.concurrency), ratio(control.value), _read(control.value)]
        for control in controls(results)
    ]
    met, reason = every_part_helps(results)
    return "\n\n".join(
        [
            "Tokens per second of `echo` as it is over `echo` with one part changed; above 1 the part helps:",
            table(["changed to", "setting", "concurrency", "ratio", "reading"], rows),
            _over_off(results),
            f"Bar 3, {verdict(met)}: {reason}.",
        ]
    )


def learning_block(library: Library) -> str:
    results = library.study("learning")
    if results is None:
        return missing("learning")
    changes = [(change, level, block) for change in LEARNED for level, block in results.of_group("").items()]
    found = [(change, level, results.ratio(block, PRICED, f"{PRICED}:{change}")) for change, level, block in changes]
    rows = [[f"`{change}`", str(level), ratio(value), _read(value)] for change, level, value in found]
    return "\n\n".join(
        [
            "Tokens per second of `echo` as it is over `echo` with one part off:",
            table(["changed to", "concurrency", "ratio", "reading"], rows),
            _over_off(results),
        ]
    )


def _read(value: Ratio | None) -> str:
    if value is None or value.low is None or value.high is None:
        return "not judged"
    return "helps" if value.low > 1 else "hurts" if value.high < 1 else "no difference seen"


def _over_off(results: Results) -> str:
    rows = [
        [
            f"`{arm}`",
            str(concurrency),
            ratio(results.ratio(block, arm)),
            *(number(results.total(block, arm, name)) for name in ("acceptance_length", "utilisation")),
            number(results.total(block, arm, "nodes_verified"), 0),
        ]
        for arm in results.arms
        for concurrency, block in results.of_group("").items()
        if results.cells(block, arm)
    ]
    headings = ["arm", "concurrency", "over `off`", "acceptance length", "utilisation", "nodes"]
    return "The same arms over `off`:\n\n" + table(headings, rows)
