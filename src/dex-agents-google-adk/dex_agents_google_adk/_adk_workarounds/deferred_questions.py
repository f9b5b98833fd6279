"""Let a call of the input tool be put off like any other.

ADK takes a call of the input tool for a pause of its own by its name alone, also when the event
does not mark it as long-running. Such an event is not replayed, so the other calls of its response
could never get their results.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType

from google.adk.agents import invocation_context
from google.adk.events import _interrupts
from google.adk.events.event import Event
from google.adk.flows.llm_flows.core import _resume
from google.adk.workflow.utils import _rehydration_utils

from dex_agents_google_adk._adk_workarounds._patch import Patch, install
from dex_agents_google_adk._attempt import current_attempt

_MODULES: tuple[ModuleType, ...] = (_interrupts, invocation_context, _resume, _rehydration_utils)
"""Those that have the function in a name of their own."""


def _guarded(extract: Callable[[Event], set[str]]) -> Callable[[Event], set[str]]:
    def guarded(event: Event) -> set[str]:
        attempt = current_attempt()
        if attempt is not None and event.id in attempt.long_running:
            return set(event.long_running_tool_ids or ())
        return extract(event)

    return guarded


PATCHES = (
    Patch(_MODULES, "extract_event_interrupt_ids", ("event",), inspect.isfunction, _guarded),
)


def apply() -> bool:
    """Install the guard; true if it stands."""
    return install(
        PATCHES,
        "ADK's search for interrupts has changed; a response that asks for input beside other "
        "calls may fail its turn in a durable session",
    )
