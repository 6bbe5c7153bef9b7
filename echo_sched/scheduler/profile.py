"""What calibration learned about one model with one drafter: checkpoints, thresholds, depths and costs, as a JSON file.

Reads strictly (an unknown or missing key, or a number out of range, is an error that names it) and refuses to be used
with another model or drafter. Does not know how its numbers were fitted or what policies make of them.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from echo_sched.errors import ProfileError
from echo_sched.scheduler import acceptance, cost
from echo_sched.scheduler.acceptance import AcceptanceCurve
from echo_sched.scheduler.cost import CostTable
from echo_sched.scheduler.fields import Fields

SCHEMA_VERSION = 3


@dataclass(frozen=True)
class Identity:
    """Which model or drafter. A profile's fingerprint None matches any weights under any model name."""

    name: str
    fingerprint: str | None


@dataclass(frozen=True)
class Checkpoint:
    """A depth whose offers the gate reads; `c <= threshold` truncates. auc* are None where nothing was measured."""

    depth: int
    threshold: float  # [0, 1]
    auc: float | None
    auc_low: float | None
    auc_high: float | None
    n: int


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
    threshold: float | None  # what the dense gate uses; None: not read


@dataclass(frozen=True)
class Profile:
    """Everything a policy reads that was learned beforehand. Raises ProfileError when parts contradict each other."""

    model: Identity
    drafter: Identity
    target_depth: int  # d0
    typical_depth: float  # D_typ: mean accepted path length, above 0
    checkpoints: tuple[Checkpoint, ...]  # depths ascending
    no_checkpoint_reason: str | None
    depths: tuple[DepthStats, ...]  # depths ascending
    acceptance: tuple[AcceptanceCurve, ...]  # depths ascending; none: path probabilities are taken at their word
    cost: CostTable | None
    provenance: dict[str, Any]

    def __post_init__(self) -> None:
        if self.target_depth < 1:
            raise ProfileError(f"target_depth must be at least 1, got {self.target_depth}")
        if not self.typical_depth > 0:
            raise ProfileError(f"typical_depth must be above 0, got {self.typical_depth}")
        columns: dict[str, Sequence[Checkpoint | DepthStats | AcceptanceCurve]] = {
            "checkpoints": self.checkpoints,
            "depths": self.depths,
            "acceptance": self.acceptance,
        }
        for name, rows in columns.items():
            listed = [row.depth for row in rows]
            if any(low >= high for low, high in pairwise([0, *listed])):
                raise ProfileError(f"{name}: depth must increase from at least 1, got {listed}")
        read: list[Checkpoint | DepthStats] = [*self.checkpoints, *self.depths]
        for row in read:
            if row.threshold is not None and not 0 <= row.threshold <= 1:
                raise ProfileError(f"threshold must be in [0, 1], got {row.threshold} at depth {row.depth}")

    def to_json(self) -> dict[str, Any]:
        """JSON-able, in the file's layout; `from_json` reads it back unchanged."""
        return {
            "schema_version": SCHEMA_VERSION,
            "model": asdict(self.model),
            "drafter": asdict(self.drafter),
            "target_depth": self.target_depth,
            "typical_depth": self.typical_depth,
            "checkpoints": [asdict(checkpoint) for checkpoint in self.checkpoints],
            "no_checkpoint_reason": self.no_checkpoint_reason,
            "depths": [asdict(depth) for depth in self.depths],
            "acceptance": [curve.to_json() for curve in self.acceptance],
            "cost": None if self.cost is None else self.cost.to_json(),
            "provenance": self.provenance,
        }

    @staticmethod
    def from_json(data: object) -> "Profile":
        """Read the file's layout. Raises ProfileError naming the key."""
        if isinstance(data, dict) and data.get("schema_version", SCHEMA_VERSION) != SCHEMA_VERSION:
            found = data["schema_version"]
            raise ProfileError(f"schema_version must be {SCHEMA_VERSION}, got {found!r}; run calibrate again")
        document = Fields(data, "", ("schema_version", *_names(Profile)))
        document.integer("schema_version", SCHEMA_VERSION)
        table = document.optional_object("cost", cost.KEYS)
        return Profile(
            model=_identity(document.object("model", _names(Identity))),
            drafter=_identity(document.object("drafter", _names(Identity))),
            target_depth=document.integer("target_depth", 1),
            typical_depth=document.number("typical_depth"),
            checkpoints=tuple(_checkpoint(row) for row in document.objects("checkpoints", _names(Checkpoint))),
            no_checkpoint_reason=document.optional_text("no_checkpoint_reason"),
            depths=tuple(_depth_stats(row) for row in document.objects("depths", _names(DepthStats))),
            acceptance=tuple(map(AcceptanceCurve.from_json, document.objects("acceptance", acceptance.KEYS))),
            cost=None if table is None else CostTable.from_json(table),
            provenance=document.free_object("provenance"),
        )

    def save(self, path: str | Path) -> None:
        """Write the file, whole or not at all. Raises ProfileError when it cannot be written."""
        text = json.dumps(self.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        unfinished = Path(f"{path}.part")
        try:
            unfinished.write_text(text, encoding="utf-8")
            os.replace(unfinished, path)
        except OSError as error:
            raise ProfileError(f"cannot write profile {path}: {error.strerror}") from error
        finally:
            unfinished.unlink(missing_ok=True)


def load_profile(path: str | Path) -> Profile:
    """Read a profile file. Raises ProfileError, naming the file and the key, when it is unreadable or malformed."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ProfileError(f"cannot read profile {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"profile {path} is not JSON: {error}") from error
    try:
        return Profile.from_json(data)
    except ProfileError as error:
        raise ProfileError(f"profile {path}: {error}") from error


def check_profile(profile: Profile, model: Identity, drafter: Identity) -> None:
    """Raise ProfileError, naming both sides, unless the profile was made for this model and this drafter."""
    if profile.drafter.name != drafter.name or _differs(profile.drafter, drafter):
        raise ProfileError(f"the profile was made for drafter {_shown(profile.drafter)}, not for {_shown(drafter)}")
    if _differs(profile.model, model):
        raise ProfileError(
            f"the profile was made for model {_shown(profile.model)}, not for {_shown(model)}; calibrate this model"
        )


def _differs(recorded: Identity, actual: Identity) -> bool:
    return recorded.fingerprint is not None and recorded.fingerprint != actual.fingerprint


def _shown(identity: Identity) -> str:
    return f"{identity.name} (fingerprint {identity.fingerprint or 'none'})"


def _names(value: type[Identity | Checkpoint | DepthStats | Profile]) -> tuple[str, ...]:
    """Keys of the JSON object: the dataclass's own field names."""
    return tuple(field.name for field in fields(value))


def _identity(row: Fields) -> Identity:
    return Identity(row.text("name"), row.optional_text("fingerprint"))


def _checkpoint(row: Fields) -> Checkpoint:
    return Checkpoint(
        depth=row.integer("depth", 1),
        threshold=row.number("threshold", 0.0, 1.0),
        auc=row.optional_number("auc", 0.0, 1.0),
        auc_low=row.optional_number("auc_low", 0.0, 1.0),
        auc_high=row.optional_number("auc_high", 0.0, 1.0),
        n=row.integer("n", 0),
    )


def _depth_stats(row: Fields) -> DepthStats:
    return DepthStats(
        depth=row.integer("depth", 1),
        n=row.integer("n", 0),
        acceptance=row.optional_number("acceptance", 0.0, 1.0),
        mean_confidence=row.optional_number("mean_confidence", 0.0, 1.0),
        auc=row.optional_number("auc", 0.0, 1.0),
        auc_low=row.optional_number("auc_low", 0.0, 1.0),
        auc_high=row.optional_number("auc_high", 0.0, 1.0),
        threshold=row.optional_number("threshold", 0.0, 1.0),
    )
