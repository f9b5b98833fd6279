"""Whose event an event is, and what it says about the node.

ADK stamps the path of a node on the events of every agent that runs nested in it. Read back, a
nested agent's transfer looks like the node's own, which ADK then cannot carry out. And the event in
which a composite agent notes how far it has come looks like one that ends its run.
"""

from __future__ import annotations

from collections.abc import Collection

from google.adk.events.event import Event


def forget_misleading_path(event: Event, agent_names: Collection[str]) -> None:
    """Take the path off an event that would be read as something its node did not do."""
    if not event.node_info.path or event.author not in agent_names:
        return
    is_foreign = event.node_info.name != event.author
    is_progress = event.actions.agent_state is not None and not event.actions.end_of_agent
    if is_foreign or (is_progress and not event.content):
        event.node_info.path = ""
