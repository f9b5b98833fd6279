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
    run = (path, context.branch)  # below a composite agent, several runs have one path
    own = [
        index
        for index, event in enumerate(events)
        if event.invocation_id == context.invocation_id
        and event.author != USER
        and _run_of(event) == run
    ]
    # A run that is tried again begins anew, behind what the failed one has left.
    failed = max((index for index in own if is_failure(events[index])), default=-1)
    first = next((index for index in own if index > failed), None)
    place = next(
        (
            index
            for index in reversed(range(len(events)))
            if _is_input(events[index]) and _run_of(events[index]) == run
        ),
        None,
    )
    inputs = context.attempt.node_inputs
    if place is not None:
        inputs[path] = dump_event(events[place])
        if first is not None and first < place:
            events.insert(first, events.pop(place))
    elif path in inputs and first is not None:
        event = load_event(copy_json(inputs[path]))
        if _run_of(event) == run:
            context.attempt.synthetic_events.add(event.id)
            events.insert(first, event)


def is_failure(event: Event) -> bool:
    """Whether ADK noted that the run of a node failed."""
    return event.error_code is not None and event.content is None


def _is_input(event: Event) -> bool:
    return event.author == USER and not event.invocation_id


def _run_of(event: Event) -> tuple[str, str | None]:
    return event.node_info.path, event.branch
