"""Gate readings of one step, depth by depth. Plain collecting; decides nothing."""

import numpy as np

from echo_sched.scheduler.gate import GateDecision
from echo_sched.scheduler.plan import GateReadings


class ReadingLog:
    """What the gate read, whether it truncated anybody or not."""

    def __init__(self) -> None:
        none, no_flag = np.zeros(0, np.int64), np.zeros(0, np.bool_)
        self._parts = [GateReadings(none, none, np.zeros(0), no_flag, no_flag)]

    def add(self, depth: int, decision: GateDecision) -> None:
        present = np.flatnonzero(decision.present)
        self._parts.append(
            GateReadings(
                request=present,
                depth=np.full(len(present), depth),
                confidence=decision.confidence[present],
                unsure=decision.unsure[present],
                let_through=~decision.truncated[present],
            )
        )

    @property
    def readings(self) -> GateReadings:
        return GateReadings(*(np.concatenate(columns) for columns in zip(*self._parts, strict=True)))
