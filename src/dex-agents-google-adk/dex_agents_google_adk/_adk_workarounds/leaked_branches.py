"""Keep what comes behind a ``ParallelAgent`` out of the branch that ended last.

ADK takes the branch of an event for that of the node that passes it on. When a composite agent is a
node, the node ends in the branch of whichever nested agent spoke last, and what follows in the
Workflow begins there: it sees that branch and not the others, and goes on elsewhere after a pause.
"""

from __future__ import annotations

import inspect
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.event import Event
from google.adk.workflow._node_runner import NodeRunner

from dex_agents_google_adk._adk_workarounds._patch import Patch, install
from dex_agents_google_adk._attempt import current_attempt


def _guarded(enrich: Any) -> Any:
    def guarded(self: Any, event: Event, ctx: Any) -> None:
        own = ctx._invocation_context
        before = own.branch
        enrich(self, event, ctx)
        node = self._node
        is_composite = isinstance(node, BaseAgent) and not isinstance(node, LlmAgent)
        if is_composite and current_attempt() is not None:
            own.branch = before

    return guarded


PATCHES = (
    Patch((NodeRunner,), "_enrich_event", ("self", "event", "ctx"), inspect.isfunction, _guarded),
)


def apply() -> bool:
    """Install the guard; true if it stands."""
    return install(
        PATCHES,
        "ADK's way to stamp the events of a node has changed; what comes behind a ParallelAgent that "
        "is a node may fail its turn in a durable session",
    )
