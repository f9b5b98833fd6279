"""Leave a node of mode ``chat`` that has had its say alone while others wait.

Such a node ends without an output, and ADK takes a node without one for one that has not ended: when
a node beside it goes on after a pause, it asks the finished agent's model again.
"""

from __future__ import annotations

import inspect
from typing import Any

from google.adk.agents.llm_agent import LlmAgent
from google.adk.workflow import _dynamic_node_scheduler, _workflow
from google.adk.workflow.utils import _replay_interceptor
from google.adk.workflow.utils._replay_interceptor import InterceptionResult

from dex_agents_google_adk._adk_workarounds._patch import Patch, install
from dex_agents_google_adk._attempt import current_attempt


def _guarded(check: Any) -> Any:
    def guarded(*, node: Any, recovered: Any = None, current_run: Any = None) -> Any:
        result = check(node=node, recovered=recovered, current_run=current_run)
        attempt = current_attempt()
        if (
            attempt is not None
            and result.should_run
            and isinstance(node, LlmAgent)
            and node.mode == "chat"
            and recovered is not None
            and recovered.finished_after_resume
            and not attempt.is_in_its_run(node.name)
        ):
            return InterceptionResult(should_run=False)
        return result

    return guarded


PATCHES = (
    Patch(
        (_replay_interceptor, _workflow, _dynamic_node_scheduler),
        "check_interception",
        (),
        inspect.isfunction,
        _guarded,
    ),
)


def apply() -> bool:
    """Install the guard; true if it stands."""
    return install(
        PATCHES,
        "ADK's way to decide which nodes run again has changed; an agent of mode chat that is a node "
        "beside others may be asked twice in a durable session",
    )
