"""Whose event an event is, and what it says about the node.

ADK stamps the path of a node on the events of every agent that runs nested in it. Read back, a
nested agent's transfer looks like the node's own, which ADK then cannot carry out. And the event in
which a composite agent notes how far it has come, or says something on the way, looks like one that
ends its run. So what ADK reads to find out how far a node has come leaves these events out. They keep
their paths, by which agents see them or not.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from typing import Any

from google.adk.events.event import Event
from google.adk.workflow import _dynamic_node_scheduler
from google.adk.workflow.utils import _rehydration_utils, _replay_manager
from google.adk.workflow.utils._replay_manager import ReplayManager

from dex_agents_google_adk._adk_workarounds._patch import Patch, install
from dex_agents_google_adk._attempt import current_attempt


def misleading_events(turn: Sequence[Event], agent_names: Collection[str]) -> set[str]:
    """Ids of the turn's events that would be read as something their node did not do."""
    on_their_way = _agents_on_their_way(turn)
    return {event.id for event in turn if _misleads(event, agent_names, on_their_way)}


def _agents_on_their_way(turn: Sequence[Event]) -> set[str]:
    """Agents whose newest mark in the turn says how far they have come."""
    found: set[str] = set()
    for event in turn:
        if event.actions.end_of_agent:
            found.discard(event.author)
        elif event.actions.agent_state is not None:
            found.add(event.author)
    return found


def _misleads(event: Event, agent_names: Collection[str], on_their_way: Collection[str]) -> bool:
    if not event.node_info.path or event.author not in agent_names:
        return False
    is_foreign = event.node_info.name != event.author
    is_progress = event.actions.agent_state is not None and not event.actions.end_of_agent
    return is_foreign or (is_progress and not event.content) or event.author in on_their_way


def _telling(events: list[Event]) -> list[Event]:
    attempt = current_attempt()
    if attempt is None or not attempt.misleading_events:
        return events
    return [event for event in events if event.id not in attempt.misleading_events]


def _reconstructing(reconstruct: Any) -> Any:
    def reconstructing(
        events: list[Event],
        base_path: str,
        invocation_id: str,
        group_by_direct_child: bool = False,
    ) -> Any:
        return reconstruct(_telling(events), base_path, invocation_id, group_by_direct_child)

    return reconstructing


def _indexing(index: Any) -> Any:
    def indexing(self: Any, events: list[Event]) -> None:
        index(self, _telling(events))

    return indexing


PATCHES = (
    Patch(
        (_rehydration_utils, _replay_manager, _dynamic_node_scheduler),
        "_reconstruct_node_states",
        ("events", "base_path", "invocation_id", "group_by_direct_child"),
        inspect.isfunction,
        _reconstructing,
    ),
    Patch((ReplayManager,), "_index_events", ("self", "events"), inspect.isfunction, _indexing),
)


def apply() -> bool:
    """Install the guards; true if they stand."""
    return install(
        PATCHES,
        "ADK's way to find out how far a node has come has changed; a composite agent below a node "
        "may fail its turn in a durable session",
    )
