"""What the server has heard of the engine so far: for the info route. Decides nothing."""

from echo_sched.scheduler.live import Scheduling
from echo_sched.types import RequestStats, StepRecord
from server.reports import Report


class Heard:
    def __init__(self) -> None:
        self.report = Report(0, 0)  # the latest
        self.last_record: StepRecord | None = None
        self.scheduling: Scheduling | None = None  # None before the model is loaded
        self._num_verify_steps = 0  # summed over requests
        self._num_emitted = 0  # by those steps

    @property
    def acceptance_length(self) -> float:
        """Tokens per verify step and request since the start, bonus included."""
        return self._num_emitted / self._num_verify_steps if self._num_verify_steps else 1.0

    def note(self, report: Report) -> None:
        self.report = report
        if report.record is not None:
            self.last_record = report.record
        if report.scheduling is not None:
            self.scheduling = report.scheduling

    def note_request(self, before: RequestStats, now: RequestStats) -> None:
        """A request's statistics have grown."""
        self._num_verify_steps += now.num_verify_steps - before.num_verify_steps
        self._num_emitted += now.num_emitted - before.num_emitted
