"""The two sizes of the proof, and its summary: a table of what each test compared, ready for docs/exactness.md."""

from collections.abc import Callable, Iterator

import pytest

from tests.counts import Counts
from tests.proof.sizes import Sized

SUMMARY = "proof"  # the property under which a test reports its row


@pytest.fixture
def sized(pytestconfig: pytest.Config) -> Sized:
    return Sized(pytestconfig.getoption("--long"))


@pytest.fixture
def counts(record_property: Callable[[str, object], None]) -> Iterator[Counts]:
    """What the test counts ends up in the summary, whether it passes or not."""
    counts = Counts()
    yield counts
    record_property(SUMMARY, counts.row())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows = [
        (report.nodeid.rpartition("/")[2], value)
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "teardown"
        for name, value in report.user_properties
        if name == SUMMARY
    ]
    if rows:
        terminalreporter.section("what was compared")
        terminalreporter.write_line("| test | counts |")
        terminalreporter.write_line("|---|---|")
    for test, row in rows:
        terminalreporter.write_line(f"| `{test}` | {', '.join(f'{name} {value}' for name, value in row.items())} |")
