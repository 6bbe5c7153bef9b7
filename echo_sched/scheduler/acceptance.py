"""How likely the target agrees: the calibrated chance that a node lies on the accepted path, given its path logprob S.

A drafter's probabilities are not chances of agreement; isotonic curves measured per depth turn the one into the other.
Does not know how curves are fitted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from echo_sched.errors import ProfileError
from echo_sched.scheduler.fields import Fields
from echo_sched.tree import FloatArray

KEYS = ("depth", "n", "path_probability", "acceptance")


@dataclass(frozen=True)
class AcceptanceCurve:
    """Chance of acceptance by path probability at one depth, linear between points. Raises ProfileError."""

    depth: int
    n: int  # nodes it was measured on
    path_probability: tuple[float, ...]  # ascending, from 0 to 1
    acceptance: tuple[float, ...]  # never falling, in [0, 1]

    def __post_init__(self) -> None:
        x, y = self.path_probability, self.acceptance
        if len(x) < 2 or x[0] != 0.0 or x[-1] != 1.0 or any(low >= high for low, high in pairwise(x)):
            raise ProfileError(f"acceptance: path_probability must ascend from 0 to 1 at depth {self.depth}")
        if len(y) != len(x) or not 0.0 <= y[0] <= y[-1] <= 1.0 or any(low > high for low, high in pairwise(y)):
            raise ProfileError(f"acceptance: acceptance must rise within [0, 1], one per point, at depth {self.depth}")

    def to_json(self) -> dict[str, Any]:
        """JSON-able; `from_json` reads it back unchanged."""
        return {
            "depth": self.depth,
            "n": self.n,
            "path_probability": list(self.path_probability),
            "acceptance": list(self.acceptance),
        }

    @staticmethod
    def from_json(fields: Fields) -> "AcceptanceCurve":
        """Raises ProfileError naming the key."""
        return AcceptanceCurve(
            fields.integer("depth", 1),
            fields.integer("n", 0),
            fields.numbers("path_probability"),
            fields.numbers("acceptance"),
        )


class Acceptance:
    """Curves by depth. A depth without one takes the nearest shallower depth's; without any, the chance is exp(S)."""

    def __init__(self, curves: Sequence[AcceptanceCurve] = ()) -> None:
        """`curves` by ascending depth."""
        self._curves = tuple(curves)

    def chance(self, depth: int, path_logp: FloatArray) -> FloatArray:
        """[C] chance that nodes at `depth` are on the accepted path."""
        probability: FloatArray = np.exp(path_logp)
        fitting = [curve for curve in self._curves if curve.depth <= depth]
        if not fitting:
            return probability
        chance: FloatArray = np.interp(probability, fitting[-1].path_probability, fitting[-1].acceptance)
        return chance
