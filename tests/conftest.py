"""Hooks of the whole suite: the tests that docs/requirements.md names have to pass."""

from __future__ import annotations

import os
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
    # The suite is ours, so the server that is named for everything is meant for it, too.
    if address := os.environ.get("DEX_SERVER_ADDRESS"):
        os.environ["DEX_TEST_SERVER_ADDRESS"] = address
    if (processes := config.getoption("--processes")) > 1:
        config.pluginmanager.register(ForkedSuite(processes, prefork.start_ahead))
    config.pluginmanager.register(ProofOfRequirements(REQUIREMENTS_FILE, other_rows))
