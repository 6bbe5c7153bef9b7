"""From verified nodes to acceptance curves: what a path probability was worth, depth by depth.

Isotonic regression: a likelier path is never less often accepted; nothing else is assumed of the shape. The curve is
stored as few points, so neighbours are pooled into bins first: of equal path probability altogether, since most nodes
of an ungated tree are hardly possible and what is bought are the likely ones. Knows nothing of models or files.
"""

from collections.abc import Sequence

import numpy as np
from sklearn.isotonic import IsotonicRegression

from echo_sched.scheduler.acceptance import AcceptanceCurve
from echo_sched.types import NodeReading

MIN_NODES = 200  # fewer at a depth decide nothing: it then takes the curve of the depth above
NUM_BINS = 24  # at most
MIN_PER_BIN = 40  # nodes


def acceptance_curves(nodes: Sequence[NodeReading]) -> tuple[AcceptanceCurve, ...]:
    """One curve per depth with enough nodes, by ascending depth. The nodes come from ungated trees."""
    depths = np.array([node.depth for node in nodes], np.int64)
    probability = np.exp([node.path_logp for node in nodes])
    accepted = np.array([node.accepted for node in nodes], np.float64)
    curves = []
    for depth in np.unique(depths).tolist():
        at_depth = depths == depth
        if at_depth.sum() >= MIN_NODES:
            curves.append(_curve(depth, probability[at_depth], accepted[at_depth]))
    return tuple(curves)


def _curve(depth: int, probability: np.ndarray, accepted: np.ndarray) -> AcceptanceCurve:
    bins = _bins(np.lexsort((accepted, probability)), probability)
    centres = np.array([probability[part].mean() for part in bins])
    shares = np.array([accepted[part].mean() for part in bins])
    sizes = [part.size for part in bins]
    fitted = IsotonicRegression(y_min=0.0, y_max=1.0).fit(centres, shares, sizes).predict(centres)
    # Nothing is accepted that was never thought possible; certainty is worth what the likeliest bin was.
    points = {0.0: 0.0} | dict(zip(centres.tolist(), fitted.tolist(), strict=True))
    points[1.0] = max(points.values())
    x, y = zip(*sorted(points.items()), strict=True)
    return AcceptanceCurve(depth, len(probability), x, y)


def _bins(order: np.ndarray, probability: np.ndarray) -> list[np.ndarray]:
    """`order`, which ascends, in parts of about equal summed probability and at least MIN_PER_BIN nodes."""
    ascending = probability[order]
    mass = np.cumsum(ascending)
    edges = np.searchsorted(mass, mass[-1] * np.arange(1, NUM_BINS) / NUM_BINS)
    edges = np.searchsorted(ascending, ascending[edges])  # equal ones stay together
    ends = [len(order)]
    for edge in edges[::-1].tolist():  # from the likeliest down: what is too few joins the likelier bin
        if ends[-1] - edge >= MIN_PER_BIN and edge >= MIN_PER_BIN:
            ends.append(edge)
    return np.split(order, ends[:0:-1])
