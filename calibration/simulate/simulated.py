"""What a simulation gives: its steps and the requests it has served, in plain numbers."""

from dataclasses import dataclass
from typing import NamedTuple


class SimulatedStep(NamedTuple):
    """One step in plain numbers, named as in StepRecord."""

    seconds: float
    k_max: int
    num_decoding: int
    num_prompt_tokens: int
    num_levels: int
    num_verified: int
    num_accepted: int
    num_emitted: int
    num_cut: int  # requests whose right path ended here only since the trace did not draft it further


class Served(NamedTuple):
    """A finished request. It was admitted at once when it came, so all its waiting is for tokens."""

    arrived_at: float
    output_times: tuple[float, ...]  # of the steps that gave it tokens
    num_output_tokens: int

    @property
    def seconds(self) -> float:
        """From its admission to its last token."""
        return self.output_times[-1] - self.arrived_at


@dataclass(frozen=True)
class SimulatedRun:
    steps: tuple[SimulatedStep, ...]
    served: tuple[Served, ...]  # in order of finishing

    @property
    def duration(self) -> float:
        return sum(step.seconds for step in self.steps)
