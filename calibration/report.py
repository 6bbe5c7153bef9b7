"""What a calibration tells a person (a table) and a program (one JSON line).

Knows the fitted values; does not know how they came about.
"""

import json

from rich.console import Console
from rich.table import Table

from echo_sched.scheduler.fit import DepthFit, Fit
from echo_sched.scheduler.profile import Profile


def print_table(fit: Fit, console: Console) -> None:
    """One line per measured depth; below, why a depth is no checkpoint. Fits 80 columns."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    for heading in ("depth", "n", "accepted", "confidence", "AUC", "low", "high", "threshold", "J", "checkpoint"):
        table.add_column(heading, justify="right", no_wrap=True)
    for depth in fit.depths:
        table.add_row(*_cells(depth))
    console.print(table)
    lines = [
        *(f"depth {depth.depth} is no checkpoint: {depth.rejection}" for depth in fit.depths if depth.rejection),
        "low, high: 95 % interval of the AUC; J: sensitivity + specificity - 1 of the threshold on held-out prompts",
        f"target depth {fit.target_depth}, typical depth {fit.typical_depth:.2f}",
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def summary_line(profile: Profile, out: str, trace: str | None) -> str:
    """One JSON document on one line."""
    data, run = profile.provenance["data"], profile.provenance["run"]
    return json.dumps(
        {
            "out": out,
            "trace": trace,
            "weights": profile.provenance["weights"],
            "num_prompts": data["num_prompts"],
            "num_skipped": data["num_skipped"],
            "num_bad_rows": data["num_bad_rows"],
            "num_steps": run["num_steps"],
            "num_readings": run["num_readings"],
            "target_depth": profile.target_depth,
            "typical_depth": profile.typical_depth,
            "checkpoints": profile.to_json()["checkpoints"],
            "no_checkpoint_reason": profile.no_checkpoint_reason,
        },
        ensure_ascii=False,
        allow_nan=False,
    )


def _cells(depth: DepthFit) -> tuple[str, ...]:
    return (
        str(depth.depth),
        str(depth.n),
        f"{depth.acceptance:.3f}",
        f"{depth.mean_confidence:.3f}",
        _number(depth.auc),
        _number(depth.auc_low),
        _number(depth.auc_high),
        _number(depth.threshold),
        _number(depth.held_out_j),
        "no" if depth.rejection else "yes",
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
