"""Remember across a pause that something below a LoopAgent has asked it to end.

The loop keeps that in a local variable. When another branch below it pauses, the loop goes on later
without the variable, and runs agents that plain ADK does not run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.loop_agent import LoopAgent
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions

from dex_agents_google_adk._attempt import AttemptInvocationContext


def repeated_escalation(agent: BaseAgent, context: AttemptInvocationContext) -> Event | None:
    """An event that tells the loop around ``agent``, which goes on, what it was told before."""
    loop = agent.parent_agent
    if not isinstance(loop, LoopAgent):
        return None
    events = [e for e in context.session.events if e.invocation_id == context.invocation_id]
    if not _was_escalated(events, loop.name, agent.name, context.attempt.descendants):
        return None
    # Partial, so that it tells the loop and stands nowhere: ADK goes on from the last event.
    return Event(
        invocation_id=context.invocation_id,
        author=agent.name,
        branch=context.branch,
        partial=True,
        actions=EventActions(escalate=True),
    )


def _was_escalated(
    events: list[Event], loop: str, agent: str, descendants: Mapping[str, Collection[str]]
) -> bool:
    inside = {agent, *descendants.get(agent, ())}
    for event in reversed(events):
        if event.author == loop and event.actions.agent_state is not None:
            return False
        if event.actions.escalate and event.author in inside:
            return True
    return False
