"""Find the earlier run of a sub-agent that began the turn.

ADK stores its events under the agent's path in the tree, but looks for them under its name alone.
So it runs the agent anew instead of following the transfer that the agent has already made.
"""

from __future__ import annotations

import inspect
import warnings
from typing import Any

from google.adk.workflow._dynamic_node_scheduler import DynamicNodeScheduler

from dex_agents_google_adk._adk_workarounds import AdkWorkaroundWarning
from dex_agents_google_adk._attempt import current_attempt

_NAME = "_rehydrate_from_events"
_MARK = "_dex_agents_guarded"


def apply() -> bool:
    """Install the guard once per process; true if it stands."""
    rehydrate: Any = getattr(DynamicNodeScheduler, _NAME, None)
    if getattr(rehydrate, _MARK, False):
        return True
    if rehydrate is None or list(inspect.signature(rehydrate).parameters) != [
        "self",
        "ctx",
        "node_path",
    ]:
        warnings.warn(
            "ADK's way to find earlier runs of a node has changed; a turn that begins with a "
            "sub-agent may not go on after a pause in a durable session",
            AdkWorkaroundWarning,
            stacklevel=2,
        )
        return False

    def guarded(self: Any, ctx: Any, node_path: str) -> None:
        rehydrate(self, ctx, node_path)
        if current_attempt() is None or ctx.node_path or node_path in self._state.runs:
            return
        if stored := _stored_path(ctx._invocation_context, node_path):
            rehydrate(self, ctx, stored)
            if (run := self._state.runs.pop(stored, None)) is not None:
                self._state.runs[node_path] = run

    setattr(guarded, _MARK, True)
    setattr(DynamicNodeScheduler, _NAME, guarded)
    return True


def _stored_path(context: Any, node_path: str) -> str:
    name = node_path.split("@")[0]
    for event in context.session.events:
        path = event.node_info.path
        if (
            event.invocation_id == context.invocation_id
            and event.author == name
            and path.endswith(f"/{node_path}")
        ):
            return str(path)
    return ""
