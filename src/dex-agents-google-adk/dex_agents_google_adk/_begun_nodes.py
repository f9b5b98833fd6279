"""Nodes that were in the middle of their run when the turn paused.

An agent goes on where it was. A node that runs others runs from its beginning: what it has said and
changed on the way is stored where it happened, so saying it again must not store it again, and it has
to find the state that it began with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from google.adk.events._interrupts import is_interrupt_event
from google.adk.events.event import Event

from dex_agents._contract import Json
from dex_agents_google_adk._json import copy_json, to_json

_ABSENT: Any = object()


class BegunNodes:
    """What is known of them by path.

    Args:
        paths: The nodes that paused in the attempt before and run from their beginning, and how much
            each had said in runs that have failed.
        agents: Paths of the agents that paused.
    """

    def __init__(
        self, paths: Mapping[str, int] | None = None, agents: Collection[str] = ()
    ) -> None:
        self._agents_before = frozenset(agents)
        self._agents = set(agents)
        self._before = dict(paths or {})
        self._now = set(self._before)
        self._failed = dict(self._before)
        self._said: Counter[str] = Counter()
        self._to_say: Counter[str] = Counter()
        self._changes: dict[str, dict[str, tuple[Json, Json]]] = {}

    def read(self, state: Mapping[str, Json], turn: Iterable[Event]) -> None:
        """Note what the nodes have said and changed.

        Args:
            state: The session's state before the turn.
            turn: Stored events of the turn so far.
        """
        if not self._before:
            return
        known = dict(state)
        for event in turn:
            path, delta = event.node_info.path, event.actions.state_delta
            if path in self._before and is_own(event):
                self._said[path] += 1
                if self._said[path] > self._before[path]:
                    self._to_say[path] += 1
                    self._note_changes(path, known, delta)
            known.update(delta)

    def _note_changes(
        self, path: str, known: Mapping[str, Json], delta: Mapping[str, Json]
    ) -> None:
        changes = self._changes.setdefault(path, {})
        for key, value in delta.items():
            first, _ = changes.get(key, (known.get(key, _ABSENT), None))
            changes[key] = (first, value)

    @property
    def paths(self) -> dict[str, int]:
        """The same as ``paths`` of the constructor, for the next attempt."""
        return {path: self._failed.get(path, 0) for path in sorted(self._now)}

    def was_begun(self, path: str) -> bool:
        """Whether the node paused in the attempt before."""
        return path in self._before or path in self._agents_before

    @property
    def agents(self) -> Sequence[str]:
        """The same as ``agents`` of the constructor, for the next attempt."""
        return sorted(self._agents)

    def pauses(self, path: str, *, is_agent: bool) -> None:
        """A node stops in the middle of its run."""
        (self._agents if is_agent else self._now).add(path)

    def ends(self, path: str) -> None:
        """A node has come to its end."""
        self._now.discard(path)
        self._agents.discard(path)

    def fails(self, path: str) -> None:
        """A run has failed; the next one says what it says anew."""
        self._failed[path] = self._said[path]
        self._to_say.pop(path, None)
        self._changes.pop(path, None)

    def begin_again(self, path: str, state: dict[str, Any]) -> None:
        """Take back what the node has changed, where nobody has changed it since."""
        for key, (first, last) in self._changes.pop(path, {}).items():
            if to_json(state.get(key)) != to_json(last):
                continue
            if first is _ABSENT:
                state.pop(key, None)
            else:
                state[key] = copy_json(first)

    def says(self, path: str) -> bool:
        """A node says something; false if it has said and stored that before."""
        if self._to_say[path]:
            self._to_say[path] -= 1
            return False
        self._said[path] += 1
        return True


def is_own(event: Event) -> bool:
    """Whether an event of a node's path is one that the node says again when it begins again."""
    return not (event.partial or is_interrupt_event(event) or _is_failure(event))


def _is_failure(event: Event) -> bool:
    return event.error_code is not None and event.content is None
