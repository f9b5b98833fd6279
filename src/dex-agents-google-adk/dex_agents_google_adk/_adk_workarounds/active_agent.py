"""Which agent goes on when an invocation does.

ADK looks at the author of the session's last event, which may be an agent in the middle of a
composite one, and then runs that agent without what is around it.
"""

from __future__ import annotations

from collections.abc import Callable

from google.adk.agents.base_agent import BaseAgent
from google.adk.sessions.session import Session

Pick = Callable[[Session, BaseAgent], BaseAgent]


def pick(session: Session, root: BaseAgent, invocation_id: str, pick_first: Pick) -> BaseAgent:
    """The agent that the invocation began with, followed through its own transfers."""
    events = session.events
    start = next(
        (i for i, event in enumerate(events) if event.invocation_id == invocation_id), len(events)
    )
    active = pick_first(session.model_copy(update={"events": events[:start]}), root)
    for event in events[start:]:
        target = event.actions.transfer_to_agent
        if target and event.author == active.name and event.invocation_id == invocation_id:
            active = root.find_agent(target) or active
    return active
