"""Find the earlier run of a sub-agent that began the turn.

ADK stores its events under the agent's path in the tree, but looks for them under its name alone,
because the run has no parent. So it runs the agent anew instead of following the transfer that the
agent has already made. When an invocation goes on, the run gets the path of the agent's parent.
"""

from __future__ import annotations

import inspect
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.workflow._dynamic_node_scheduler import DynamicNodeScheduler

from dex_agents_google_adk._adk_workarounds._patch import Patch, install
from dex_agents_google_adk._attempt import current_attempt

_PATH = "_node_path"


def _guarded(execute: Any) -> Any:
    async def guarded(self: Any, ctx: Any, node: Any, node_input: Any, **arguments: Any) -> Any:
        attempt = current_attempt()
        if attempt is not None and attempt.is_resumed and ctx is not None and not ctx.node_path:
            setattr(ctx, _PATH, _parent_path(node))
        return await execute(self, ctx, node, node_input, **arguments)

    return guarded


def _parent_path(node: Any) -> str:
    names: list[str] = []
    parent = node.parent_agent if isinstance(node, BaseAgent) else None
    while parent is not None:
        names.insert(0, f"{parent.name}@1")
        parent = parent.parent_agent
    return "/".join(names)


PATCHES = (
    Patch(
        (DynamicNodeScheduler,),
        "_execute_step",
        ("self", "ctx", "node", "node_input"),
        inspect.iscoroutinefunction,
        _guarded,
    ),
)


def apply() -> bool:
    """Install the guard; true if it stands."""
    return install(
        PATCHES,
        "ADK's way to find earlier runs of a node has changed; a turn that begins with a "
        "sub-agent may not go on after a pause in a durable session",
    )
