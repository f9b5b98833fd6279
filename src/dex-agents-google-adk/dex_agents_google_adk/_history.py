"""Messages of finished turns as ADK events, parsed once per process.

The cache only saves work: an entry counts when the stored item is equal to the one it was made
from, so losing it, or two engines that use the same session id, changes nothing but the time a
``RunModel`` takes.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from google.adk.events.event import Event
from google.genai import types

from dex_agents._contract import AgentMessage, Json
from dex_agents_google_adk._events import load_event
from dex_agents_google_adk._json import copy_json

_SHARED_PART_FIELDS = frozenset({"text", "thought", "thought_signature"})


class HistoryCache:
    """Parsed events by session and position, the least recently used dropped first.

    Args:
        maximum_events: How many events stay parsed in this process.
    """

    def __init__(self, maximum_events: int = 20_000) -> None:
        self._maximum = maximum_events
        self._entries: OrderedDict[tuple[str, int], tuple[Json, Event, bool]] = OrderedDict()

    def load(self, session_id: str, messages: Sequence[AgentMessage]) -> list[Event]:
        """Events for one attempt; nothing mutable in them is shared with another attempt."""
        return [self._load_one(session_id, message) for message in messages]

    def _load_one(self, session_id: str, message: AgentMessage) -> Event:
        key = (session_id, message.sequence)
        item = message.framework_item
        entry = self._entries.get(key) if message.sequence >= 0 else None
        if entry is not None and (entry[0] is item or entry[0] == item):
            self._entries.move_to_end(key)
            return _private_copy(entry[1]) if entry[2] else entry[1]
        event = load_event(item)
        if message.sequence >= 0:
            nested = _has_nested_data(event)
            self._entries[key] = (item, event, nested)
            self._entries.move_to_end(key)
            while len(self._entries) > self._maximum:
                self._entries.popitem(last=False)
            return _private_copy(event) if nested else event
        return _private_copy(event)


def replay_state(items: Sequence[Json]) -> dict[str, Any]:
    """Session state after the given stored events, in containers of its own."""
    state: dict[str, Any] = {}
    for item in items:
        if delta := (item.get("actions") or {}).get("state_delta"):
            state.update(delta)
    return {key: copy_json(value) for key, value in state.items()}


def _has_nested_data(event: Event) -> bool:
    if event.actions.state_delta or event.custom_metadata or event.output is not None:
        return True
    parts = (event.content.parts if event.content else None) or []
    return any(not part.model_fields_set <= _SHARED_PART_FIELDS for part in parts)


def _private_copy(event: Event) -> Event:
    # ADK copies contents and parts for a request but shares what is nested in them, such as the
    # arguments of a call, so a callback that edits a request in place would reach into the cache.
    mine = copy.copy(event)
    fields = mine.__dict__
    if event.actions.state_delta:
        actions = copy.copy(event.actions)
        actions.__dict__["state_delta"] = copy_json(event.actions.state_delta)
        fields["actions"] = actions
    if event.content is not None and event.content.parts:
        content = copy.copy(event.content)
        content.__dict__["parts"] = [_part_copy(part) for part in event.content.parts]
        fields["content"] = content
    if event.custom_metadata:
        fields["custom_metadata"] = copy_json(event.custom_metadata)
    if event.output is not None:
        fields["output"] = copy_json(event.output)
    return mine


def _part_copy(part: types.Part) -> types.Part:
    if part.model_fields_set <= _SHARED_PART_FIELDS:
        return part
    mine = copy.copy(part)
    if (call := part.function_call) is not None:
        call = copy.copy(call)
        call.__dict__["args"] = copy_json(call.args)
        mine.__dict__["function_call"] = call
        return mine
    if (response := part.function_response) is not None and not response.parts:
        response = copy.copy(response)
        response.__dict__["response"] = copy_json(response.response)
        mine.__dict__["function_response"] = response
        return mine
    return part.model_copy(deep=True)
