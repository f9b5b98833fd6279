"""Hooks of the whole suite: which test ran how, for the table in docs/requirements.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.requirements import REQUIREMENTS_FILE, read_rows, rows_without_a_passed_test

_passed: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember the tests that ran to a good end."""
    if report.when == "call" and report.passed:
        _passed.add(report.nodeid.split("[")[0])


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """After a run of the whole suite, every test that a requirement names must have passed."""
    config = session.config
    whole_suite = (
        config.args_source is pytest.Config.ArgsSource.TESTPATHS
        and not config.option.keyword
        and config.option.markexpr == "not long"
        and not config.option.collectonly
        and not config.option.maxfail
    )
    if not whole_suite or exitstatus not in (0, pytest.ExitCode.OK):
        return
    missing = rows_without_a_passed_test(read_rows(REQUIREMENTS_FILE), _passed)
    if missing:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        assert reporter is not None
        reporter.write_sep("=", "requirements whose test did not pass", red=True)
        for row, test in missing:
            reporter.write_line(f"{row} names {test}, which did not run or did not pass")


REPOSITORY = Path(__file__).parent.parent
