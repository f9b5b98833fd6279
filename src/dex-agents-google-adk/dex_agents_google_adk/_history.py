"""Messages of finished turns as ADK events, parsed once per process.

The cache only saves work: an entry counts when the stored item is equal to the one it was made
from, so losing it, or two engines that use the same session id, changes nothing but the time a
``RunModel`` takes.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.adk.events.event import Event

from dex_agents._contract import AgentMessage, Json
from dex_agents_google_adk._events import load_event
from dex_agents_google_adk._json import copy_json
from dex_agents_google_adk._late_copies import Original


@dataclass(frozen=True)
class _Entry:
    item: Json
    event: Original[Event]
    size: int


class HistoryCache:
    """Parsed events by session and position, the least recently used dropped first.

    Args:
        maximum_bytes: How much stays parsed in this process, counted as JSON text. Parsed it takes
            some ten times as much. With 0 nothing stays.
    """

    def __init__(self, maximum_bytes: int = 32 * 1024 * 1024) -> None:
        self._maximum = maximum_bytes
        self._bytes = 0
        self._entries: OrderedDict[tuple[str, int], _Entry] = OrderedDict()

    @property
    def size(self) -> int:
        """Bytes of JSON text whose events are kept."""
        return self._bytes

    def load(self, session_id: str, messages: Sequence[AgentMessage]) -> list[Event]:
        """Events for one attempt, which are that attempt's own."""
        return [self._load_one(session_id, message) for message in messages]

    def _load_one(self, session_id: str, message: AgentMessage) -> Event:
        item = message.framework_item
        if message.sequence < 0:
            return load_event(copy_json(item))
        key = (session_id, message.sequence)
        entry = self._entries.get(key)
        if entry is not None and (entry.item is item or entry.item == item):
            self._entries.move_to_end(key)
        else:
            entry = self._keep(key, item)
        return entry.event.copy()

    def _keep(self, key: tuple[str, int], item: Json) -> _Entry:
        # A callback may edit in place whatever it finds in its session. Plain ADK forgets that with
        # the invocation, so nobody is ever given the event that the copies are made from.
        entry = _Entry(item, Original(load_event(item)), len(json.dumps(item)))
        replaced = self._entries.pop(key, None)
        self._entries[key] = entry
        self._bytes += entry.size - (replaced.size if replaced is not None else 0)
        while self._bytes > self._maximum:
            _, dropped = self._entries.popitem(last=False)
            self._bytes -= dropped.size
        return entry


def replay_state(items: Sequence[Json]) -> dict[str, Any]:
    """Session state after the given stored events, in containers of its own."""
    state: dict[str, Any] = {}
    for item in items:
        if delta := (item.get("actions") or {}).get("state_delta"):
            state.update(delta)
    return {key: copy_json(value) for key, value in state.items()}
