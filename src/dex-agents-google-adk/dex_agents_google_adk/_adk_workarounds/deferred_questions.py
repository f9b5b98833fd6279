"""Let a call of the input tool be put off like any other.

ADK takes a call of the input tool for a pause of its own by its name alone, also when the event
does not mark it as long-running. Such an event is not replayed, so the other calls of its response
could never get their results.
"""

from __future__ import annotations

import inspect
import warnings
from types import ModuleType
from typing import Any

from google.adk.agents import invocation_context
from google.adk.events import _interrupts
from google.adk.events.event import Event
from google.adk.flows.llm_flows.core import _resume
from google.adk.workflow.utils import _rehydration_utils

from dex_agents_google_adk._adk_workarounds import AdkWorkaroundWarning
from dex_agents_google_adk._attempt import current_attempt

_NAME = "extract_event_interrupt_ids"
_MARK = "_dex_agents_guarded"
_MODULES: tuple[ModuleType, ...] = (_interrupts, invocation_context, _resume, _rehydration_utils)
"""Those that have the function in a name of their own."""


def apply() -> bool:
    """Install the guard once per process; true if it stands."""
    extract: Any = getattr(_interrupts, _NAME, None)
    if getattr(extract, _MARK, False):
        return True
    if (
        extract is None
        or list(inspect.signature(extract).parameters) != ["event"]
        or any(getattr(module, _NAME, None) is not extract for module in _MODULES)
    ):
        warnings.warn(
            "ADK's search for interrupts has changed; a response that asks for input beside other "
            "calls may fail its turn in a durable session",
            AdkWorkaroundWarning,
            stacklevel=2,
        )
        return False

    def guarded(event: Event) -> set[str]:
        attempt = current_attempt()
        if attempt is not None and event.id in attempt.long_running:
            return set(event.long_running_tool_ids or ())
        found: set[str] = extract(event)
        return found

    setattr(guarded, _MARK, True)
    for module in _MODULES:
        setattr(module, _NAME, guarded)
    return True
