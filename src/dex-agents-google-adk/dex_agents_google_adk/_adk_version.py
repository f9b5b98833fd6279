"""Which versions of ADK this release was tested with."""

from __future__ import annotations

import warnings
from importlib.metadata import version

TESTED = "2.13"


def warn_if_untested() -> None:
    """Warn once per process if another ADK is installed than those that were tested."""
    installed = version("google-adk")
    if installed.split(".")[:2] != TESTED.split("."):
        warnings.warn(
            f"google-adk {installed} is installed; dex-agents-google-adk was tested with {TESTED}.x. "
            f"Play your agents through its tests before you rely on it, or install "
            f"'google-adk>={TESTED},<{_next(TESTED)}'",
            UserWarning,
            stacklevel=2,
        )


def _next(tested: str) -> str:
    major, minor = tested.split(".")
    return f"{major}.{int(minor) + 1}"
