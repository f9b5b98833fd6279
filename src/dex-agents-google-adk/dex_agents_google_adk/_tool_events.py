"""Events that the nodes behind a tool write while it runs.

ADK runs a generator function, and a Workflow or node that stands among an agent's tools, as nodes
that write events of their own between the call and its response. ADK's runner takes them from the
invocation's queue. A tool's Step takes them itself and keeps them with the result; the attempt that
gets the result puts them into the queue of its own runner, so that plugins, state and history see
what they see in plain ADK.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from typing import Any

from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.platform import time as adk_time
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow._errors import NodeInterruptedError

from dex_agents._contract import Json, ToolCallRecord
from dex_agents._errors import ToolExecutionError
from dex_agents_google_adk._adk_compat import open_event_queue, send_event
from dex_agents_google_adk._events import dump_event, load_event
from dex_agents_google_adk._json import copy_json

_WAITS = (
    "The tool stopped to wait for an approval or an answer, which its Step cannot pass on; what it "
    "had done by then is done. Ask before it is called, with the input tool or a confirmation of "
    "the call, or make its agent a sub-agent."
)
_NO_OUTPUT = "The tool's Workflow ended without an output; let its last node return something."
EVENTS_KEY = "events"
"""Where a result's side data holds the events."""


@contextlib.asynccontextmanager
async def collected_events(
    invocation: InvocationContext,
    keep_state: Callable[[Mapping[str, Any]], dict[str, Any]],
    show: Callable[[Event], None],
) -> AsyncIterator[list[Json]]:
    """Be ADK's runner for the nodes of a tool: gives the list that their events come into.

    Args:
        keep_state: What of an event's state changes may be stored.
        show: Called with each event as it comes, also with parts of one that is still growing.

    Raises:
        ToolExecutionError: A node stopped to wait for a person, or a Workflow has no output.
    """
    queue = open_event_queue(invocation)
    items: list[Json] = []

    async def take(event: Event, taken: asyncio.Event | None) -> None:
        try:
            show(event)
            if not event.partial:
                delta = keep_state(event.actions.state_delta)
                actions = event.actions.model_copy(update={"state_delta": delta})
                # Appending takes ``temp:`` keys away, which the turn's own session has to get.
                items.append(dump_event(event.model_copy(update={"actions": actions})))
                await invocation.session_service.append_event(invocation.session, event)
        finally:
            if taken is not None:
                taken.set()  # the node waits for this, whatever became of the event

    lost: list[Exception] = []

    async def take_all() -> None:
        while True:
            try:
                await take(*await queue.get())
            except Exception as error:
                lost.append(error)  # and on: a node would wait for ever for its next event

    taking = asyncio.create_task(take_all())
    try:
        yield items
        while not queue.empty():
            await take(*queue.get_nowait())
        if lost:
            raise lost[0]
    except NodeInterruptedError as waiting:
        raise ToolExecutionError(
            _WAITS if any(item.get("long_running_tool_ids") for item in items) else _NO_OUTPUT
        ) from waiting
    finally:
        taking.cancel()
        await asyncio.wait([taking])


class ToolEvents:
    """Which events of an attempt are those of tools' Steps.

    Args:
        stored: Ids of the events that the turn had before the attempt.
    """

    def __init__(self, stored: Collection[str] = ()) -> None:
        self._stored = frozenset(stored)
        self._ids: set[str] = set()

    def __contains__(self, event_id: str) -> bool:
        return event_id in self._ids

    def comes(self, event_id: str) -> bool:
        """An event is about to happen again; false if the turn has had it."""
        if event_id in self._stored:
            return False
        self._ids.add(event_id)
        return True


def events_of(record: ToolCallRecord) -> list[Json]:
    """The stored events of a call."""
    data = record.framework_data
    events = data.get(EVENTS_KEY) if isinstance(data, dict) else None
    return events if isinstance(events, list) else []


async def replay_events(
    context: ToolContext,
    record: ToolCallRecord,
    known: ToolEvents,
    happened: Callable[[Event], None],
) -> None:
    """Let the events of a call happen in the turn, as if its tool ran now.

    Args:
        happened: Called with each that the turn did not have.
    """
    for item in events_of(record):
        event = load_event(copy_json(item))
        if not known.comes(event.id):
            continue  # the response to the call was lost to a pause, and is made again
        event.timestamp = adk_time.get_time()
        if event.isolation_scope is None:
            event.isolation_scope = context.isolation_scope
        happened(event)
        await send_event(context, event)


def names_of_calls(events: Iterable[Event], agents: Collection[str]) -> Collection[str]:
    """How ADK names the tools' calls among the given events in the branches of what runs inside them.

    Args:
        agents: Names of the agents, which speak for themselves inside a call.
    """
    calls = (call for event in events for call in event.get_function_calls())
    return {f"{call.name}@{call.id}" for call in calls if call.name not in agents}


def is_inside(event: Event, calls: Collection[str]) -> bool:
    """Whether an event comes from inside one of the calls, by their names."""
    return any(name in (event.branch or "") for name in calls)
