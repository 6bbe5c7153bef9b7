"""What a profile holds of each depth: statistics of every measured one, and thresholds of those that the gate reads.

Reads JSON rows strictly. Does not know how the numbers were fitted, nor which load bucket a step falls into.
"""

from dataclasses import dataclass, fields

from echo_sched.scheduler.fields import Fields


@dataclass(frozen=True)
class Checkpoint:
    """A depth whose offers the gate reads; `c <= threshold` truncates. auc* are None where nothing was measured."""

    depth: int
    thresholds: tuple[float, ...]  # [load buckets of the profile] each in [0, 1]; 0 lets everybody pass
    auc: float | None
    auc_low: float | None
    auc_high: float | None
    n: int


@dataclass(frozen=True)
class Conditional:
    """The same question among requests whose accepted path reached the depth above. None where undefined."""

    n: int
    acceptance: float | None  # share of them whose path went on to this depth
    auc: float | None
    auc_low: float | None
    auc_high: float | None


UNMEASURED = Conditional(0, None, None, None, None)


@dataclass(frozen=True)
class DepthStats:
    """One measured depth. Rates are in [0, 1]; None where undefined (no readings, or one class only)."""

    depth: int
    n: int
    acceptance: float | None  # share of requests with offers whose accepted path reached the depth
    mean_confidence: float | None
    auc: float | None
    auc_low: float | None
    auc_high: float | None
    threshold: float | None  # Youden's; what the dense gate uses where there is no checkpoint; None: not read
    conditional: Conditional = UNMEASURED


def checkpoint_of(row: Fields) -> Checkpoint:
    """Raises ProfileError naming the key, as the functions below do."""
    return Checkpoint(
        depth=row.integer("depth", 1),
        thresholds=row.numbers("thresholds"),
        auc=row.optional_number("auc", 0.0, 1.0),
        auc_low=row.optional_number("auc_low", 0.0, 1.0),
        auc_high=row.optional_number("auc_high", 0.0, 1.0),
        n=row.integer("n", 0),
    )


def depth_stats_of(row: Fields) -> DepthStats:
    return DepthStats(
        depth=row.integer("depth", 1),
        n=row.integer("n", 0),
        acceptance=row.optional_number("acceptance", 0.0, 1.0),
        mean_confidence=row.optional_number("mean_confidence", 0.0, 1.0),
        auc=row.optional_number("auc", 0.0, 1.0),
        auc_low=row.optional_number("auc_low", 0.0, 1.0),
        auc_high=row.optional_number("auc_high", 0.0, 1.0),
        threshold=row.optional_number("threshold", 0.0, 1.0),
        conditional=_conditional(row.object("conditional", names(Conditional))),
    )


def names(value: type) -> tuple[str, ...]:
    """Keys of the JSON object: the dataclass's own field names."""
    return tuple(field.name for field in fields(value))


def _conditional(row: Fields) -> Conditional:
    return Conditional(
        n=row.integer("n", 0),
        acceptance=row.optional_number("acceptance", 0.0, 1.0),
        auc=row.optional_number("auc", 0.0, 1.0),
        auc_low=row.optional_number("auc_low", 0.0, 1.0),
        auc_high=row.optional_number("auc_high", 0.0, 1.0),
    )
