"""Hooks of the whole suite: the tests that docs/requirements.md names have to pass."""

from __future__ import annotations

import pytest

from support.requirements import REQUIREMENTS_FILE, ProofOfRequirements


def pytest_configure(config: pytest.Config) -> None:
    """Watch how every test ends."""
    config.pluginmanager.register(ProofOfRequirements(REQUIREMENTS_FILE))
