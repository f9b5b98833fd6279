"""Let a node that runs others go on where it paused, and say nothing twice.

Such a node runs from its beginning when an invocation goes on. What it has said before is stored a
second time, and a counter that it keeps in the state counts again. And one that runs several side by
side leaves them behind when the first of them pauses: the next one that pauses fails the run.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.workflow import Workflow
from google.adk.workflow._errors import DynamicNodeFailError
from google.adk.workflow._node_runner import NodeRunner, _has_non_output_content

from dex_agents_google_adk._adk_workarounds._patch import Patch, install
from dex_agents_google_adk._attempt import current_attempt
from dex_agents_google_adk._begun_nodes import is_own


async def _wait_for_others(ctx: Any) -> None:
    """Let the children that a paused node runs come to their end or pause too."""
    scheduler = ctx._workflow_scheduler
    if scheduler is None:
        return
    tasks = [
        run.task
        for path, run in scheduler._state.runs.items()
        if path.rpartition("/")[0] == ctx.node_path and run.task is not None
    ]
    if not any(not task.done() for task in tasks):
        return
    await asyncio.wait(tasks)
    for task in tasks:
        child = task.result()
        if child.error is not None:
            raise DynamicNodeFailError(
                message=f"Dynamic node {child.node_path} failed",
                error=child.error,
                error_node_path=child.error_node_path,
            )
        ctx._interrupt_ids.update(child.interrupt_ids)


def _executing(execute: Any) -> Any:
    async def executing(self: Any, ctx: Any, node_input: Any) -> None:
        if (attempt := current_attempt()) is not None:
            attempt.begun.begin_again(ctx.node_path, ctx.session.state)
        try:
            await execute(self, ctx, node_input)
            is_other = isinstance(self._node, (BaseAgent, Workflow))
            if attempt is not None and ctx.interrupt_ids and not is_other:
                await _wait_for_others(ctx)
        except Exception:
            if attempt is not None:
                attempt.begun.fails(ctx.node_path)
            raise

    return executing


def _enqueuing(enqueue: Any) -> Any:
    async def enqueuing(self: Any, event: Any, ctx: Any) -> None:
        attempt = current_attempt()
        is_claimed = event.output is not None and ctx._output_delegated
        if (
            attempt is None
            or not is_own(event)
            or (is_claimed and not _has_non_output_content(event))
            or attempt.begun.says(ctx.node_path)
        ):
            await enqueue(self, event, ctx)
            return
        self._flush_deltas(event, ctx)
        ctx.session.state.update(event.actions.state_delta)
        ctx._output_emitted |= event.output is not None and not is_claimed
        ctx._output_delegated |= bool(event.node_info.message_as_output)

    return enqueuing


PATCHES = (
    Patch(
        (NodeRunner,),
        "_execute_node",
        ("self", "ctx", "node_input"),
        inspect.iscoroutinefunction,
        _executing,
    ),
    Patch(
        (NodeRunner,),
        "_enqueue_event",
        ("self", "event", "ctx"),
        inspect.iscoroutinefunction,
        _enqueuing,
    ),
)


def apply() -> bool:
    """Install the guards; true if they stand."""
    return install(
        PATCHES,
        "ADK's way to run a node and to pass on its events has changed; a node that runs others may "
        "say things twice in a durable session",
    )
