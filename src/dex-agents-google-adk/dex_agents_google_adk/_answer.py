"""What a finished turn has answered, read off its events."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from google.adk.events.event import Event

from dex_agents._contract import Json
from dex_agents_google_adk._events import USER, shown_text
from dex_agents_google_adk._tool_events import is_inside


def final_text(events: Sequence[Event], call_names: Collection[str]) -> str:
    """The text of the last final response, which no tool has given.

    Args:
        call_names: What ``names_of_calls`` gives of the events.
    """
    for event in reversed(events):
        if event.author == USER or is_inside(event, call_names) or not event.is_final_response():
            continue
        if text := shown_text(event.content):
            return text
    return ""


def root_output(
    events: Sequence[Event], call_names: Collection[str], dump: Callable[[Event], Json]
) -> Json:
    """The output of the root as its event has it, ``None`` without one.

    ADK names on an event all nodes whose output it is, by their paths. An output that is the text of a
    message is on no event: that is the final text.

    Args:
        call_names: What ``names_of_calls`` gives of the events.
        dump: The JSON form of an event.
    """
    for event in reversed(events):
        if event.output is None or is_inside(event, call_names):
            continue
        if any("/" not in path for path in event.node_info.output_for or ()):
            return dump(event).get("output")
    return None
