"""Find the earlier run of a sub-agent that began the turn.

ADK stores its events under the agent's path in the tree, but looks for them under its name alone,
because the run has no parent. So it runs the agent anew instead of following the transfer that the
agent has already made. When an invocation goes on, ADK looks under the path in the tree.
"""

from __future__ import annotations

import inspect
from typing import Any

from google.adk.agents.context import _derive_node_path
from google.adk.workflow._dynamic_node_scheduler import DynamicNodeScheduler

from dex_agents_google_adk._adk_workarounds._patch import Patch, install
from dex_agents_google_adk._attempt import current_attempt


def _guarded(check: Any) -> Any:
    async def guarded(
        self: Any,
        curr_parent_ctx: Any,
        curr_node: Any,
        curr_name: str,
        node_path: str,
        curr_run_id: str,
        *arguments: Any,
        **named: Any,
    ) -> Any:
        attempt = current_attempt()
        if attempt is not None and attempt.is_resumed and not curr_parent_ctx.node_path:
            node_path, _ = _derive_node_path(curr_name, curr_run_id, None, None, node=curr_node)
            if node_path not in self._state.runs:
                self._rehydrate_from_events(curr_parent_ctx, node_path)
        return await check(
            self,
            curr_parent_ctx,
            curr_node,
            curr_name,
            node_path,
            curr_run_id,
            *arguments,
            **named,
        )

    return guarded


PATCHES = (
    Patch(
        (DynamicNodeScheduler,),
        "_check_existing_run",
        (
            "self",
            "curr_parent_ctx",
            "curr_node",
            "curr_name",
            "node_path",
            "curr_run_id",
            "curr_input",
            "use_as_output",
            "use_sub_branch",
            "override_branch",
            "override_isolation_scope",
        ),
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
