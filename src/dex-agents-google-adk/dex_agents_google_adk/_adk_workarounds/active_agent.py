"""Which agent ADK starts when an invocation goes on.

ADK looks at the author of the session's last event, which may stand in the middle of a composite
agent, and then runs that agent without what is around it. Started where the invocation began, ADK
itself follows the transfers of the stored events to the agent that waits.
"""

from __future__ import annotations

from collections.abc import Callable

from google.adk.agents.base_agent import BaseAgent
from google.adk.sessions.session import Session

Pick = Callable[[Session, BaseAgent], BaseAgent]


def first_agent(session: Session, root: BaseAgent, invocation_id: str, pick: Pick) -> BaseAgent:
    """The agent that the invocation began with."""
    events = session.events
    start = next(
        (i for i, event in enumerate(events) if event.invocation_id == invocation_id), len(events)
    )
    return pick(session.model_copy(update={"events": events[:start]}), root)
