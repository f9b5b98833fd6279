"""Ask less of each event of a session that is plain: no rewinds of ADK's own, no branches, no tasks.

ADK goes through all events of a session some fifteen times in a turn for what hardly any session
has: events that a rewind has removed, events of other branches, a task that waits for the user. It
asks a list of questions of each and reads its ``actions``, which are copied for that. The guards ask
one question of each event, read nothing that has to be copied, and leave a session that is not
plain to ADK.

As this says again when ADK's functions find nothing, the guards step aside when the text of any of
them is not the one that they were made for.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from inspect import isfunction

from google.adk import runners
from google.adk.agents import _agent_router
from google.adk.agents.invocation_context import InvocationContext
from google.adk.apps import compaction
from google.adk.events import _rewind_events
from google.adk.events.event import Event
from google.adk.flows.llm_flows.context import _contents
from google.adk.sessions.session import Session
from google.adk.workflow.utils import _replay_manager

from dex_agents_google_adk._adk_workarounds import AdkWorkaroundWarning
from dex_agents_google_adk._adk_workarounds._patch import Patch, digest_of, install
from dex_agents_google_adk._attempt import current_attempt
from dex_agents_google_adk._events import USER
from dex_agents_google_adk._late_copies import peek, unread

_CHANGED = (
    "ADK goes through the events of a session in another way; long durable sessions cost more"
)
MADE_FOR = "014f3fe7f816ed7e"
"""Digest of the text of ADK's functions."""

_ApplyRewinds = Callable[[list[Event]], list[Event]]
_FindScope = Callable[[Session], tuple[str, str] | None]
_GetEvents = Callable[..., list[Event]]


def _without_rewinds(apply_rewinds: _ApplyRewinds) -> _ApplyRewinds:
    def guarded(events: list[Event]) -> list[Event]:
        for event in events:
            kept = unread(event)
            if _is_rewind(event) if kept is None else kept.found(_is_rewind):
                return apply_rewinds(events)
        return list(events)

    return guarded


def _is_rewind(event: Event) -> bool:
    actions = peek(event, "actions")
    return bool(actions and actions.rewind_before_invocation_id)


def _without_tasks(find_scope: _FindScope) -> _FindScope:
    def guarded(session: Session) -> tuple[str, str] | None:
        if any(event.isolation_scope for event in session.events):
            return find_scope(session)
        return None

    return guarded


def _without_branches(get_events: _GetEvents) -> _GetEvents:
    def guarded(
        self: InvocationContext,
        *,
        current_invocation: bool = False,
        current_branch: bool = False,
    ) -> list[Event]:
        is_plain = (
            current_branch
            and self.branch is None
            and getattr(self.agent, "mode", None) != "single_turn"
            and current_attempt() is not None
        )
        events = get_events(
            self,
            current_invocation=current_invocation,
            current_branch=current_branch and not is_plain,
        )
        if not is_plain:
            return events
        return [event for event in events if event.branch is None or event.author == USER]

    return guarded


PATCHES = (
    Patch(
        (_rewind_events, _agent_router, runners, _contents, _replay_manager, compaction),
        "_apply_rewinds",
        ("events",),
        isfunction,
        _without_rewinds,
    ),
    Patch((runners,), "_find_active_task_scope", ("session",), isfunction, _without_tasks),
    Patch((InvocationContext,), "_get_events", ("self",), isfunction, _without_branches),
)


def apply() -> bool:
    """Install the guards; true if they stand."""
    if digest_of(patch.original for patch in PATCHES) != MADE_FOR:
        warnings.warn(_CHANGED, AdkWorkaroundWarning, stacklevel=2)
        return False
    return install(PATCHES, _CHANGED)
