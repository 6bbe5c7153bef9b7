"""What a stopped training run continues from: one file, replaced whole.

Knows nothing of how training goes on.
"""

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from echo_sched.errors import DataError


@dataclass
class TrainingState:
    """How far a run is. `curve` has a row of plain numbers per log point and per held-out evaluation."""

    step: int = 0  # optimizer steps done
    epoch: int = 0  # passes done
    batch: int = 0  # batches done in the pass that runs
    seconds: float = 0.0  # spent so far, evaluations included
    curve: list[dict[str, Any]] = field(default_factory=list)

    def scores(self, *, pass_ends: bool = False) -> list[dict[str, Any]]:
        """The curve's held-out rows."""
        return [row for row in self.curve if "accuracy" in row and (row["pass_end"] or not pass_ends)]


def save_state(path: Path, identity: dict[str, Any], state: TrainingState, tensors: dict[str, Any]) -> None:
    """`identity`: the settings without which the tensors mean nothing. The file appears whole or not at all."""
    replace_file(path, lambda part: torch.save({"identity": identity, "state": asdict(state), **tensors}, part))


def load_state(path: Path, identity: dict[str, Any]) -> tuple[TrainingState, dict[str, Any]]:
    """The state and the tensors. Raises DataError when the file is damaged or belongs to other settings."""
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        found, state = saved.pop("identity"), TrainingState(**saved.pop("state"))
    except (OSError, RuntimeError, UnpicklingError, EOFError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"--resume: cannot read {path}: {next(iter(str(error).splitlines()), 'damaged')}") from error
    for name, value in identity.items():
        if found.get(name) != value:
            raise DataError(f"--resume: {path} was begun with {name} = {found.get(name)!r}, not {value!r}")
    return state, saved


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a file beside `path`, then put it in its place."""
    part = path.with_name(f"{path.name}.part")
    write(part)
    os.replace(part, path)
