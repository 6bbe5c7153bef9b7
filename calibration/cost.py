"""From a measured cost curve to the table a profile stores.

More rows never take less time in truth, only in a noisy measurement, so each context's column is made isotonic over N:
neighbours that violate the order are pooled to their mean, everything else stays as measured. Steps survive; nothing is
smoothed across one.
"""

from typing import Any

import numpy as np
from sklearn.isotonic import IsotonicRegression

from echo_sched.engine.measure import CostCurve
from echo_sched.scheduler.cost import CostTable


def cost_table(curve: CostCurve, draft_level_seconds: float, machine: dict[str, Any]) -> CostTable:
    """`machine` says where the seconds were measured."""
    columns = [
        IsotonicRegression().fit_transform(np.asarray(curve.num_tokens, np.float64), np.asarray(column))
        for column in zip(*curve.seconds, strict=True)
    ]
    seconds = tuple(tuple(float(value) for value in row) for row in zip(*columns, strict=True))
    return CostTable(curve.num_tokens, curve.context, seconds, draft_level_seconds, machine)
