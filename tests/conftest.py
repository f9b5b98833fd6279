"""Hooks of the whole suite: the tests that docs/requirements.md names have to pass."""

from __future__ import annotations

import signal

import pytest

from support import prefork
from support.forked_suite import ForkedSuite
from support.requirements import REQUIREMENTS_FILE, ProofOfRequirements, other_rows


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--processes``."""
    parser.addoption(
        "--processes", type=int, default=1, metavar="N", help="run the tests in N processes"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Watch how every test ends, and start the processes of tests fast."""
    # A background job of a shell without job control starts with SIGINT ignored, and so would every
    # process of the tests, some of which end theirs with it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    prefork.install()
    if (processes := config.getoption("--processes")) > 1:
        config.pluginmanager.register(ForkedSuite(processes, prefork.start_ahead))
    config.pluginmanager.register(ProofOfRequirements(REQUIREMENTS_FILE, other_rows))
