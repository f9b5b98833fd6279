"""Do not copy calls of the history to find their ids.

Whenever a node goes on after a pause, ADK looks for the ids of all calls of the session. Read as a callback would read
them, the events would be copied for that. The guard reads those that nobody has touched where they are
kept, and leaves the others to ADK.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import isfunction

from google.adk.events.event import Event
from google.adk.workflow.utils import _rehydration_utils
from google.genai import types

from dex_agents_google_adk._adk_workarounds._patch import Patch, install
from dex_agents_google_adk._late_copies import untouched

_Collect = Callable[[list[Event]], set[str]]


def _guarded(collect: _Collect) -> _Collect:
    def guarded(events: list[Event]) -> set[str]:
        read: list[Event] = []
        found: set[str] = set()
        for event in events:
            content = untouched(event, "content")
            if content is None:
                read.append(event)
            else:
                found.update(content.found(_call_ids))
        return found | collect(read)

    return guarded


def _call_ids(content: types.Content) -> frozenset[str]:
    calls = (part.function_call for part in content.parts or ())
    return frozenset(call.id for call in calls if call is not None and call.id)


PATCHES = (
    Patch((_rehydration_utils,), "_collect_function_call_ids", ("events",), isfunction, _guarded),
)


def apply() -> bool:
    """Install the guard; true if it stands."""
    return install(
        PATCHES,
        "ADK collects the ids of a session's calls in another way; long durable sessions cost more",
    )
