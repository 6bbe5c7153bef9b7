"""The study `controls`: what each part of `echo` is worth, its price aside and with it."""

from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.reproduce.intervals import Ratio
from benchmarks.reproduce.library import Library, Results
from benchmarks.reproduce.words import missing, number, ratio, table, verdict
from benchmarks.studies import ABLATIONS, PRICED, PRICED_ABLATIONS, UNPRICED

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
            "The same arms over `off`:",
            table(["arm", "concurrency", "over `off`", "acceptance length", "utilisation", "nodes"], _arms(results)),
            f"Bar 3, {verdict(met)}: {reason}.",
        ]
    )


def _read(value: Ratio | None) -> str:
    if value is None or value.low is None or value.high is None:
        return "not judged"
    return "helps" if value.low > 1 else "hurts" if value.high < 1 else "no difference seen"


def _arms(results: Results) -> list[list[str]]:
    return [
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
