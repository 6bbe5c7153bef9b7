"""What a calibration tells a person (tables) and a program (one JSON line).

Knows the fitted values; does not know how they came about.
"""

import json
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from calibration.categories import CategoryStats
from calibration.result import Calibration
from calibration.throughput import BucketFit
from echo_sched.scheduler.depth_fit import DepthFit
from echo_sched.scheduler.fit import Fit
from echo_sched.scheduler.profile import Profile


def print_tables(found: Calibration, console: Console) -> None:
    """One line per measured depth, load and category; below, why a depth is no checkpoint. Fits 80 columns."""
    fit = found.fit
    headings = ("depth", "n", "accepted", "confidence", "AUC", "low", "high", "threshold", "J", "checkpoint")
    _print(console, headings, [_cells(depth) for depth in fit.depths])
    _tell(console, *(f"depth {row.depth} is no checkpoint: {row.rejection}" for row in fit.depths if row.rejection))
    _tell(
        console,
        "low, high: 95 % interval of the AUC; J: sensitivity + specificity - 1 of the threshold on held-out prompts",
        f"target depth {fit.target_depth}, typical depth {fit.typical_depth:.2f}",
        "\nof those whose path reached the depth above:",
    )
    further = ("depth", "n", "accepted", "AUC", "low", "high", "drop", "low", "high")
    _print(console, further, [_conditional_cells(depth) for depth in fit.depths])
    _print_buckets(found.buckets, fit, console)
    _print_categories(found.categories, console)


def print_costs(profile: Profile, console: Console) -> None:
    """Milliseconds of a forward by its rows and by cached tokens, and of drafting by batch size."""
    assert profile.cost is not None
    cost = profile.cost
    rows = [
        (str(count), *(f"{1000 * second:.2f}" for second in seconds))
        for count, seconds in zip(cost.num_tokens, cost.seconds, strict=True)
    ]
    _tell(console, "milliseconds of a forward, by rows and by tokens in all requests' caches:")
    _print(console, ("rows", *map(str, cost.cached_tokens)), rows)
    drafting = cost.drafting
    for heading, sizes, seconds in (
        ("drafting one level, by batch size", drafting.num_requests, drafting.start_seconds),
        ("each further level, by the nodes that it is drafted below", drafting.num_nodes, drafting.level_seconds),
    ):
        shown = ", ".join(f"{size}: {1000 * taken:.2f}" for size, taken in zip(sizes, seconds, strict=True))
        _tell(console, f"milliseconds of {heading}: {shown}")
    _tell(console, f"feeding the drafter a token: {1000 * drafting.pair_seconds:.3f} ms")


def cost_summary(profile: Profile, out: str) -> str:
    """One JSON document on one line."""
    assert profile.cost is not None
    document = {
        "out": out,
        "model": profile.model.name,
        "drafter": profile.drafter.name,
        "cost": profile.cost.to_json(),
    }
    return json.dumps(document, ensure_ascii=False, allow_nan=False)


def summary_line(profile: Profile, out: str, trace: str | None, report: str) -> str:
    """One JSON document on one line."""
    data, run = profile.provenance["data"], profile.provenance["run"]
    return json.dumps(
        {
            "out": out,
            "trace": trace,
            "report": report,
            "weights": profile.provenance["weights"],
            "num_prompts": data["num_prompts"],
            "num_skipped": data["num_skipped"],
            "num_bad_rows": data["num_bad_rows"],
            "num_steps": run["num_steps"],
            "num_readings": run["num_readings"],
            "target_depth": profile.target_depth,
            "typical_depth": profile.typical_depth,
            "loads": list(profile.loads),
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


def _conditional_cells(depth: DepthFit) -> tuple[str, ...]:
    known = depth.conditional
    numbers = (known.acceptance, known.auc, known.auc_low, known.auc_high, depth.drop, depth.drop_low, depth.drop_high)
    return (str(depth.depth), str(known.n), *map(_number, numbers))


def _print_buckets(buckets: Sequence[BucketFit], fit: Fit, console: Console) -> None:
    if not buckets:
        return
    _tell(console, "\nthresholds per load (K_max / B):")
    depths = [depth.depth for depth in fit.checkpoints]
    rows = [
        (f"{bucket.load:g}", str(bucket.batch_size), *(f"{bucket.thresholds[depth]:.3f}" for depth in depths))
        for bucket in buckets
    ]
    _print(console, ("load", "B", *(f"d{depth}" for depth in depths)), rows)
    _tell(console, "\ntokens per second of replayed steps with them, with Youden's thresholds, with no gate:")
    rows = [
        (
            f"{bucket.load:g}",
            *(f"{speed:.1f}" for speed in bucket.fitting),
            *(("-",) * 3 if bucket.held_out is None else (f"{speed:.1f}" for speed in bucket.held_out)),
        )
        for bucket in buckets
    ]
    _print(console, ("load", "fitted", "Youden", "no gate", "held out", "Youden", "no gate"), rows)


def _print_categories(categories: Sequence[CategoryStats], console: Console) -> None:
    _tell(console, "\nacceptance by depth and kind of prompt:")
    depths = [f"d{depth}" for depth in range(1, len(categories[0].acceptance) + 1)]
    rows = [
        (
            row.category,
            str(row.num_prompts),
            f"{row.share_of_steps:.3f}",
            "-" if row.tokens_per_step is None else f"{row.tokens_per_step:.2f}",
            *(_short(value) for value in row.acceptance),
        )
        for row in categories
    ]
    _print(console, ("kind", "prompts", "steps", "tok/step", *depths), rows)
    _tell(console, "AUC:")
    _print(console, ("kind", *depths), [(row.category, *(_short(value) for value in row.auc)) for row in categories])


def _print(console: Console, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(box=None, padding=(0, 1, 0, 0))
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _tell(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
