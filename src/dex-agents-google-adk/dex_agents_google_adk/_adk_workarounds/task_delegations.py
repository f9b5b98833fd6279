"""Hand a task on only when the other calls of its response have their results.

When an agent goes on after a pause, ADK first looks for tasks that were not handed on and only then
replays the agent's open calls. In plain ADK the other calls of the response come first; and once the
task's answer stands behind the response, ADK takes the open calls for lost.
"""

from __future__ import annotations

import inspect
from typing import Any

from google.adk.workflow import _llm_agent_wrapper

from dex_agents_google_adk._adk_workarounds._patch import Patch, install
from dex_agents_google_adk._attempt import current_attempt


def _guarded(find: Any) -> Any:
    def guarded(session: Any, owner: str, tools_dict: Any, isolation_scope: Any = None) -> Any:
        attempt = current_attempt()
        if attempt is not None and attempt.awaits_replay_of(owner):
            return []
        return find(session, owner, tools_dict, isolation_scope)

    return guarded


PATCHES = (
    Patch(
        (_llm_agent_wrapper,),
        "_find_unresolved_task_delegations",
        ("session", "owner", "tools_dict", "isolation_scope"),
        inspect.isfunction,
        _guarded,
    ),
)


def apply() -> bool:
    """Install the guard; true if it stands."""
    return install(
        PATCHES,
        "ADK's search for open tasks has changed; a response that hands on a task beside other "
        "calls may fail its turn in a durable session",
    )
