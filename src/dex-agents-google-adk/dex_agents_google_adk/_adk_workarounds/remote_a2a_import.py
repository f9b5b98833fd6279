"""Stop ADK from importing the A2A agent again and again when ``a2a`` is not installed.

``google.adk.workflow`` tries ``import google.adk.agents.remote_a2a_agent`` in every run. Without
the ``a2a`` package Python finds the module, runs half of it and fails, each time, for about a
millisecond. A ``None`` entry in ``sys.modules`` makes the same import fail at once with the same
kind of error.
"""

from __future__ import annotations

import importlib.util
import sys

_MODULE = "google.adk.agents.remote_a2a_agent"


def apply() -> bool:
    """Install the entry if ``a2a`` is missing; true if it stands."""
    if _MODULE in sys.modules:
        return sys.modules[_MODULE] is None
    if importlib.util.find_spec("a2a") is not None:
        return False
    sys.modules[_MODULE] = None  # type: ignore[assignment]
    return True
