"""How likely the target agrees: the calibrated chance that a node lies on the accepted path, given its path logprob S.

A drafter's probabilities are not chances of agreement; isotonic curves measured per depth turn the one into the other.
Does not know how curves are fitted.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from echo_sched.errors import ProfileError
from echo_sched.scheduler.fields import Fields
from echo_sched.tree import FloatArray, IntArray

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


@dataclass(frozen=True)
class Acceptance:
    """Curves by depth. A depth without one takes the nearest shallower depth's; without any, the chance is exp(S)."""

    curves: tuple[AcceptanceCurve, ...] = ()  # by ascending depth
    log_odds: FloatArray | None = None  # [B, max_depth] by what each request's chances differ from them

    def chance(self, depth: int, path_logp: FloatArray, request: IntArray | None = None) -> FloatArray:
        """[C] chance that nodes at `depth` are on the accepted path. request [C]: whose they are; None: nobody's."""
        chance: FloatArray = np.exp(path_logp)
        fitting = [curve for curve in self.curves if curve.depth <= depth]
        if fitting:
            chance = np.interp(chance, fitting[-1].path_probability, fitting[-1].acceptance)
        if self.log_odds is None or request is None:
            return chance
        odds = chance * np.exp(self.log_odds[request, depth - 1])
        shifted: FloatArray = odds / (1.0 - chance + odds)
        return shifted
