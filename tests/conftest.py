"""Hooks of the whole suite: the tests that docs/requirements.md names have to pass."""

from __future__ import annotations

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
    prefork.install()
    outcomes_file = config.getoption("--outcomes")
    config.pluginmanager.register(ProofOfRequirements(REQUIREMENTS_FILE, outcomes_file, other_rows))
