"""The random gate's memory: the sparse gate's truncation rate per depth, so that chance can truncate as often.

The control that separates "truncate this much" from "truncate these". Knows readings, not requests or plans.
"""

import numpy as np

from echo_sched.scheduler.plan import AllocationReport


class TruncationRates:
    """How often the sparse gate would truncate at each depth it reads, among those it would have let come that far.

    Counted while the random gate decides. Which requests that gate lets pass does not depend on their confidence, so
    those that the thresholds would have let pass too are a fair sample of what the sparse gate would see. A depth
    without readings has rate 0.
    """

    def __init__(self, thresholds: tuple[float | None, ...]) -> None:
        self._read_depths = [depth for depth, threshold in enumerate(thresholds, start=1) if threshold is not None]
        self._num_read = [0] * len(thresholds)
        self._num_truncated = [0] * len(thresholds)

    def by_depth(self) -> tuple[float, ...]:
        """[max_depth]"""
        return tuple(
            truncated / read if read else 0.0
            for truncated, read in zip(self._num_truncated, self._num_read, strict=True)
        )

    def observe(self, report: AllocationReport) -> None:
        readings = report.readings
        passed = np.ones(len(report.num_nodes), np.bool_)
        for depth in self._read_depths:
            rows = (readings.depth == depth) & passed[readings.request]
            unsure = rows & readings.unsure
            self._num_read[depth - 1] += int(rows.sum())
            self._num_truncated[depth - 1] += int(unsure.sum())
            passed[readings.request[unsure]] = False
