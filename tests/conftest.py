"""Hooks of the whole suite: the tests that docs/requirements.md names have to pass."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from support import prefork
from support.requirements import REQUIREMENTS_FILE, ProofOfRequirements, other_rows


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--outcomes``, for a suite that runs in parts."""
    parser.addoption(
        "--outcomes",
        type=Path,
        metavar="FILE",
        help="write how the tests ended; python -m support.requirements FILE … judges them",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Watch how every test ends, and start the processes of tests fast."""
    # A background job of a shell without job control starts with SIGINT ignored, and so would every
    # process of the tests, some of which end theirs with it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    prefork.install()
    outcomes_file = config.getoption("--outcomes")
    config.pluginmanager.register(ProofOfRequirements(REQUIREMENTS_FILE, outcomes_file, other_rows))
