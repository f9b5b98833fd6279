"""Live text of a model answer."""

from __future__ import annotations

from google.adk.events.event import Event

from dex_agents._contract import AgentEventWriter
from dex_agents_google_adk._events import USER, shown_text


class LiveText:
    """Sends each piece of text once.

    A streaming model's last event repeats the text of its chunks; a model that does not stream has
    only that event.
    """

    def __init__(self, events: AgentEventWriter) -> None:
        self._events = events
        self._streamed: dict[tuple[str, str | None], set[str]] = {}

    def emit(self, event: Event) -> None:
        """Send what ``event`` adds."""
        if event.author == USER or event.get_function_responses():
            return
        key = (event.author, event.branch)
        streamed = self._streamed.setdefault(key, set())
        for kind, thoughts in (("reasoning_delta", True), ("text_delta", False)):
            text = shown_text(event.content, thoughts=thoughts)
            if not text or (not event.partial and kind in streamed):
                continue
            if event.partial:
                streamed.add(kind)
            self._events.emit(kind, text=text, agent_name=event.author)
        if not event.partial:
            streamed.clear()
