"""Let a node that claimed a child's output (``use_as_output``) hand on what it handed on before a pause.

ADK stores the child's output as that of the node, and nothing of what the node itself returned. What
stands behind the node gets the one before a pause and the other behind it. And a node that has claimed
an output counts as finished behind a pause, also while it waits for another child.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from typing import Any

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
        attempt = current_attempt()
        if attempt is not None and ctx._output_delegated and not isinstance(self._node, Workflow):
            turn = ctx.session.events[attempt.turn_starts_at :]
            if ctx.interrupt_ids:
                attempt.handed_on.pop(ctx.node_path, None)
            elif ctx.node_path in claiming_nodes(turn):
                item = dump_event(Event(output=ctx.output))
                attempt.handed_on[ctx.node_path] = item.get("output")
        await flush(self, ctx)

    return flushing


def _correct(attempt: Attempt, path: str, state: Any) -> None:
    """Give a node's state, as ADK reads it from the events, the node's own output."""
    if path not in attempt.claiming_nodes:
        return
    is_finished = path in attempt.handed_on
    state.output = copy_json(attempt.handed_on.get(path))
    state.finished_after_resume = is_finished


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
