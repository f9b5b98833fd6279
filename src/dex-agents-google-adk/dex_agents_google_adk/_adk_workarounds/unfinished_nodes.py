"""Let a node that runs others hand on what it returned, and not before it has come to its end.

Of a child's output that the node claimed (``use_as_output``) ADK stores that it is the node's, and
nothing of what the node itself returned. What stands behind the node gets the one before a pause and
the other behind it. And a node that has claimed an output, said something or changed the state counts
as finished behind a pause: an agent whose callback has written state is never asked, and a node that
waits for a child goes on without it.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.events.event import Event
from google.adk.workflow import Workflow
from google.adk.workflow._dynamic_node_scheduler import DynamicNodeScheduler
from google.adk.workflow._node_runner import NodeRunner
from google.adk.workflow.utils._replay_manager import ReplayManager

from dex_agents_google_adk._adk_workarounds._patch import Patch, install
from dex_agents_google_adk._attempt import Attempt, current_attempt
from dex_agents_google_adk._events import dump_event
from dex_agents_google_adk._json import copy_json


def claiming_nodes(turn: Sequence[Event]) -> Collection[str]:
    """Paths of the nodes that have claimed an output in the events of a turn."""
    return {path for event in turn for path in (event.node_info.output_for or ())[1:]}


def _flushing(flush: Any) -> Any:
    async def flushing(self: Any, ctx: Any) -> None:
        attempt, path = current_attempt(), ctx.node_path
        if attempt is None or not self._node.rerun_on_resume or isinstance(self._node, Workflow):
            await flush(self, ctx)
            return
        is_agent = isinstance(self._node, BaseAgent)
        if not ctx.interrupt_ids:
            attempt.begun.ends(path)
            turn = ctx.session.events[attempt.turn_starts_at :]
            if ctx._output_delegated and path in claiming_nodes(turn):
                item = dump_event(Event(output=ctx.output))
                attempt.handed_on[path] = item.get("output")
            await flush(self, ctx)
            return
        attempt.handed_on.pop(path, None)
        attempt.begun.pauses(path, is_agent=is_agent)
        if is_agent:  # others change again what they have changed and not said
            await flush(self, ctx)

    return flushing


def _correct(attempt: Attempt, path: str, state: Any) -> None:
    """Give a node's state, as ADK reads it from the events, what the node itself handed on."""
    if attempt.begun.was_begun(path):
        state.output = state.route = None
        state.finished_after_resume = False
    elif path in attempt.claiming_nodes:
        state.output = copy_json(attempt.handed_on.get(path))
        state.finished_after_resume = path in attempt.handed_on


def _scanning(scan: Any) -> Any:
    def scanning(self: Any, ctx: Any) -> Any:
        states, sequence = scan(self, ctx)
        if (attempt := current_attempt()) is not None:
            for key, state in states.items():
                _correct(attempt, f"{ctx.node_path}/{key}" if ctx.node_path else key, state)
        return states, sequence

    return scanning


def _rehydrating(rehydrate: Any) -> Any:
    def rehydrating(self: Any, ctx: Any, node_path: str) -> None:
        rehydrate(self, ctx, node_path)
        run = self._state.runs.get(node_path)
        if (attempt := current_attempt()) is not None and run is not None:
            _correct(attempt, node_path, run.recovered_state)

    return rehydrating


PATCHES = (
    Patch(
        (NodeRunner,),
        "_flush_output_and_deltas",
        ("self", "ctx"),
        inspect.iscoroutinefunction,
        _flushing,
    ),
    Patch((ReplayManager,), "scan_workflow_events", ("self", "ctx"), inspect.isfunction, _scanning),
    Patch(
        (DynamicNodeScheduler,),
        "_rehydrate_from_events",
        ("self", "ctx", "node_path"),
        inspect.isfunction,
        _rehydrating,
    ),
)


def apply() -> bool:
    """Install the guards; true if they stand."""
    return install(
        PATCHES,
        "ADK's way to find out what a node has handed on has changed; a node with use_as_output may "
        "hand on another output behind a pause in a durable session",
    )
