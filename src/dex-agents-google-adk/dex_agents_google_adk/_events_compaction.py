"""ADK's own compaction (``App.events_compaction_config``), with one model call in a ``RunModel``.

ADK decides when to sum up: before a model call, or behind the last event of a turn. Its summary is a
model call like any other, so an attempt that has already made one puts the summary off to the next
``RunModel``. That begins where this one stopped, so ADK decides the same again. What ADK would do
behind a turn is done when the next one begins: the answer is stored by then, whatever becomes of
the summary.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from google.adk.apps.base_events_summarizer import BaseEventsSummarizer
from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
from google.adk.events.event import Event

from dex_agents._keyboard import is_from_keyboard
from dex_agents_google_adk._events import is_resumption_marker

if TYPE_CHECKING:
    from google.adk.agents.llm_agent import LlmAgent
    from google.adk.apps.app import App, EventsCompactionConfig
    from google.adk.sessions.session import Session

    from dex_agents_google_adk._attempt import Attempt
    from dex_agents_google_adk._tree import AgentTree

_LOGGER = logging.getLogger("dex_agents_google_adk")


def check_events_compaction(app: App, tree: AgentTree) -> None:
    """Refuse a configuration without a model to sum up with.

    Raises:
        ValueError: It names no summarizer, and the tree has no ``LlmAgent``.
    """
    config = app.events_compaction_config
    if config is not None and config.summarizer is None and _first_agent(tree) is None:
        raise ValueError(
            f"App {app.name!r} has an events_compaction_config without a summarizer, and no "
            f"LlmAgent whose model could sum up; give the configuration a summarizer"
        )


def _first_agent(tree: AgentTree) -> LlmAgent | None:
    # ADK takes the agent that happens to need a summary first, which another process might not
    # repeat.
    return next(iter(tree.llm_agents()), None)


def attempt_config(
    app: App, tree: AgentTree, attempt: Attempt, session: Session
) -> EventsCompactionConfig | None:
    """The configuration for one attempt, with a summarizer that spends the attempt's model call."""
    config = app.events_compaction_config
    if config is None:
        return None
    inner = config.summarizer
    if inner is None:
        agent = _first_agent(tree)
        assert agent is not None, "checked at construction"
        inner = LlmEventSummarizer(llm=agent.canonical_model)
    return config.model_copy(update={"summarizer": _OneCallSummarizer(inner, attempt, session)})


class _OneCallSummarizer(BaseEventsSummarizer):
    def __init__(self, inner: BaseEventsSummarizer, attempt: Attempt, session: Session) -> None:
        self._inner = inner
        self._attempt = attempt
        self._session = session

    async def maybe_summarize_events(self, *, events: list[Event]) -> Event | None:
        # ADK prepares a model call before it replays the results that come in front of it.
        if self._is_just_done() or self._attempt.unreached():
            return None
        if not self._attempt.model_calls.take_summary_permit():
            return None
        return await self._summary(events)

    async def _summary(self, events: list[Event]) -> Event | None:
        """What the summarizer gives, or nothing: a history without a summary is still whole."""
        try:
            summary = await self._inner.maybe_summarize_events(events=events)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            if is_from_keyboard(error):
                raise
            _LOGGER.warning(
                "a summary of older events failed; the turn goes on without", exc_info=True
            )
            return None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            _LOGGER.warning("a summarizer cancelled itself; the turn goes on without its summary")
            return None
        if summary is None or (isinstance(summary, Event) and summary.actions.compaction):
            return summary
        _LOGGER.warning("a summarizer gave %s instead of a summary", type(summary).__name__)
        return None

    def _is_just_done(self) -> bool:
        # An earlier attempt summed up for the model call that comes now.
        newest = next(
            (event for event in reversed(self._session.events) if not is_resumption_marker(event)),
            None,
        )
        return newest is not None and newest.actions.compaction is not None


def hide_from_compaction(event: Event) -> None:
    """Let ADK's compaction not count an event that plain ADK would not have written."""
    if is_resumption_marker(event):
        event.timestamp = 0.0  # ADK looks only at events behind the newest summary


def compacted_view(session: Session) -> Session:
    """The session as plain ADK would hand it to the compaction between two turns."""
    events = [event for event in session.events if not is_resumption_marker(event)]
    return session.model_copy(update={"events": events})
