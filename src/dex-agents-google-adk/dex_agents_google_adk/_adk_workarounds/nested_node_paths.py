"""Whose event an event is.

ADK stamps the path of a node on the events of every agent that runs nested in it. Read back, a
nested agent's transfer looks like the node's own, which ADK then cannot carry out.
"""

from __future__ import annotations

from collections.abc import Collection

from google.adk.events.event import Event


def forget_foreign_path(event: Event, agent_names: Collection[str]) -> None:
    """Take the path off an event that an agent below the path's node made."""
    path = event.node_info.path
    if not path or event.author not in agent_names:
        return
    if path.rsplit("/", 1)[-1].split("@")[0] != event.author:
        event.node_info.path = ""
