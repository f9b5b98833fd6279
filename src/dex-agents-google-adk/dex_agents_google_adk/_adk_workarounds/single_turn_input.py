"""Keep the input of a ``single_turn`` node in front of what the node has said.

ADK gives such a node its input as a user event at the end of the session, which is never stored.
When the node goes on after a pause, ADK puts the event behind the node's own earlier events, or
leaves it out, and the model reads a conversation that never was.
"""

from __future__ import annotations

from google.adk.agents.base_agent import BaseAgent
from google.adk.events.event import Event

from dex_agents_google_adk._attempt import AttemptInvocationContext
from dex_agents_google_adk._events import USER, dump_event, load_event
from dex_agents_google_adk._json import copy_json


def put_back_input(agent: BaseAgent, context: AttemptInvocationContext) -> None:
    """Move the input to where plain ADK has it, or put it there again."""
    path = context.node_path
    if getattr(agent, "mode", None) != "single_turn" or not path:
        return
    events = context.session.events
    first = _first_own_event(events, context.invocation_id, path)
    place = _injected_input(events, path)
    inputs = context.attempt.node_inputs
    if place is not None:
        inputs[path] = dump_event(events[place])
        if first is not None and first < place:
            events.insert(first, events.pop(place))
    elif path in inputs and first is not None:
        event = load_event(copy_json(inputs[path]))
        context.attempt.synthetic_events.add(event.id)
        events.insert(first, event)


def _injected_input(events: list[Event], path: str) -> int | None:
    for index in range(len(events) - 1, -1, -1):
        event = events[index]
        if event.author == USER and not event.invocation_id and event.node_info.path == path:
            return index
    return None


def _first_own_event(events: list[Event], invocation_id: str, path: str) -> int | None:
    for index, event in enumerate(events):
        if (
            event.invocation_id == invocation_id
            and event.node_info.path == path
            and event.author != USER
        ):
            return index
    return None
