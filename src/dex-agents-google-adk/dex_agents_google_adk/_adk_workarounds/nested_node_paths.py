"""Whose event an event is, and what it says about the node.

ADK stamps the path of a node on the events of every agent that runs nested in it. Read back, a
nested agent's transfer looks like the node's own, which ADK then cannot carry out. And the event in
which a composite agent notes how far it has come, or says something on the way, looks like one that
ends its run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from google.adk.events.event import Event


def agents_on_their_way(turn: Iterable[Event]) -> set[str]:
    """Agents whose newest mark in the turn says how far they have come."""
    found: set[str] = set()
    for event in turn:
        if event.actions.end_of_agent:
            found.discard(event.author)
        elif event.actions.agent_state is not None:
            found.add(event.author)
    return found


def forget_misleading_path(
    event: Event, agent_names: Collection[str], on_their_way: Collection[str] = ()
) -> None:
    """Take the path off an event that would be read as something its node did not do."""
    if not event.node_info.path or event.author not in agent_names:
        return
    is_foreign = event.node_info.name != event.author
    is_progress = event.actions.agent_state is not None and not event.actions.end_of_agent
    if is_foreign or (is_progress and not event.content) or event.author in on_their_way:
        event.node_info.path = ""
