"""Paired ratios: two arms in the same repeat, on the same requests, minutes apart at most.

The interval is Student's t on the logarithms of the ratios, one per repeat; it says how far the mean would move if the
repeats were run again on this machine, not what other prompts or machines would give.
"""

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev
from typing import NamedTuple

LEVEL = 0.95


class Ratio(NamedTuple):
    mean: float  # geometric
    median: float
    low: float | None  # ends of the 95 % interval; None for a single repeat
    high: float | None
    num_repeats: int


def paired_ratio(mine: Sequence[float], other: Sequence[float]) -> Ratio:
    """Of speeds: entry i of both is repeat i. At least one entry."""
    ratios = [a / b for a, b in zip(mine, other, strict=True)]
    logs = [math.log(ratio) for ratio in ratios]
    centre, count = fmean(logs), len(logs)
    if count < 2:
        return Ratio(math.exp(centre), median(ratios), None, None, count)
    from scipy.stats import t  # slow to import

    half = float(t.ppf((1 + LEVEL) / 2, count - 1)) * stdev(logs) / math.sqrt(count)
    return Ratio(math.exp(centre), median(ratios), math.exp(centre - half), math.exp(centre + half), count)
