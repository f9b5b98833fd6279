"""Let an agent that waits for a ``single_turn`` sub-agent of its own wait as well.

A tool call that runs a sub-agent notes what the sub-agent waits for on the context of the call, and
stops its agent. If that agent is itself a sub-agent, ADK looks at another context to see why it
stopped, finds nothing, and takes it for finished without an answer.
"""

from __future__ import annotations

import inspect
from typing import Any

from google.adk.agents.context import Context
from google.adk.workflow._errors import NodeInterruptedError
from google.adk.workflow._node_runner import NodeRunner

from dex_agents_google_adk._adk_workarounds._patch import Patch, install
from dex_agents_google_adk._attempt import current_attempt

_AWAITED = "_dex_agents_awaited"


def _telling(run_node: Any) -> Any:
    async def telling(self: Any, node: Any, node_input: Any = None, **arguments: Any) -> Any:
        try:
            return await run_node(self, node, node_input, **arguments)
        except NodeInterruptedError as interrupted:
            setattr(interrupted, _AWAITED, self.interrupt_ids)
            raise

    return telling


def _asking(run_node_loop: Any) -> Any:
    async def asking(self: Any, ctx: Any, node_input: Any) -> None:
        try:
            await run_node_loop(self, ctx, node_input)
        except NodeInterruptedError as interrupted:
            if current_attempt() is not None:
                ctx._interrupt_ids.update(getattr(interrupted, _AWAITED, ()))
            raise

    return asking


PATCHES = (
    Patch(
        (Context,),
        "_run_node_internal",
        ("self", "node", "node_input"),
        inspect.iscoroutinefunction,
        _telling,
    ),
    Patch(
        (NodeRunner,),
        "_run_node_loop",
        ("self", "ctx", "node_input"),
        inspect.iscoroutinefunction,
        _asking,
    ),
)


def apply() -> bool:
    """Install the guards; true if they stand."""
    return install(
        PATCHES,
        "ADK's way to run a node has changed; a single_turn agent below another one may fail its "
        "turn in a durable session",
    )
