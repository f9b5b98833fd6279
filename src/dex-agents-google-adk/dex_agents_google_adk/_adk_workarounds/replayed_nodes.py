"""Do not count nodes that are only looked up against a Workflow's ``max_concurrency``.

When an invocation goes on, ADK takes finished nodes in the order in which they ended, but starts them in
the order of the graph. Under a limit the first one then waits for one that may not start: after fifteen
seconds the turn fails.
"""

from __future__ import annotations

import inspect
from typing import Any

from google.adk.workflow import Workflow

from dex_agents_google_adk._adk_workarounds._patch import Patch, install
from dex_agents_google_adk._attempt import current_attempt


def _guarded(is_at_limit: Any) -> Any:
    def guarded(self: Any, loop_state: Any) -> bool:
        if not is_at_limit(self, loop_state):
            return False
        if current_attempt() is None:
            return True
        running = [n for n in loop_state.pending_tasks if n not in loop_state.replayed_nodes]
        return bool(len(running) >= self.max_concurrency)

    return guarded


PATCHES = (
    Patch(
        (Workflow,),
        "_at_concurrency_limit",
        ("self", "loop_state"),
        inspect.isfunction,
        _guarded,
    ),
)


def apply() -> bool:
    """Install the guard; true if it stands."""
    return install(
        PATCHES,
        "ADK's way to limit how many nodes run has changed; a Workflow with max_concurrency may fail "
        "its turn in a durable session",
    )
