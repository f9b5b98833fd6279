"""Hand a task on as ADK does without a pause.

ADK runs a task when the other calls of its response have their results. When one of them waits, it
runs the task at once, and when the agent goes on after the pause, before it replays the open calls;
once the task's answer stands behind the response, it takes those calls for lost. And a task whose
call a callback has answered it runs all the same, but not after a pause.
"""

from __future__ import annotations

import inspect
from typing import Any

from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.event import Event
from google.adk.workflow import _llm_agent_wrapper
from google.adk.workflow._errors import NodeInterruptedError

from dex_agents_google_adk._adk_workarounds._patch import Patch, install
from dex_agents_google_adk._attempt import current_attempt
from dex_agents_google_adk._effects import is_task_tool


def _finding(find: Any) -> Any:
    def finding(session: Any, owner: str, tools_dict: Any, isolation_scope: Any = None) -> Any:
        attempt = current_attempt()
        if attempt is None:
            return find(session, owner, tools_dict, isolation_scope)
        # ADK looks through the whole session also for an agent that has nobody to hand a task to.
        if attempt.awaits_replay_of(owner) or not any(map(is_task_tool, tools_dict.values())):
            return []
        earlier = session.events[: attempt.turn_starts_at]
        turn = [
            event
            for event in session.events[attempt.turn_starts_at :]
            if event.author != owner or not event.get_function_responses()
        ]
        seen = session.model_copy(update={"events": earlier + turn})
        return find(seen, owner, tools_dict, isolation_scope)

    return finding


def _dispatching(dispatch: Any) -> Any:
    async def dispatching(parent_agent: Any, fc: Any, ctx: Any) -> Any:
        attempt = current_attempt()
        if attempt is not None:
            if attempt.is_early(parent_agent.name, fc.id):
                raise NodeInterruptedError
            attempt.hands_on(fc.id)
        return await dispatch(parent_agent, fc, ctx)

    return dispatching


PATCHES = (
    Patch(
        (_llm_agent_wrapper,),
        "_find_unresolved_task_delegations",
        ("session", "owner", "tools_dict", "isolation_scope"),
        inspect.isfunction,
        _finding,
    ),
    Patch(
        (_llm_agent_wrapper,),
        "_dispatch_task_fc",
        ("parent_agent", "fc", "ctx"),
        inspect.iscoroutinefunction,
        _dispatching,
    ),
)


def come_first(event: Event, agent: LlmAgent) -> bool:
    """Whether ADK runs the tasks of a response before it looks at its other calls."""
    tools = _llm_agent_wrapper._safe_canonical_tools_dict(agent)
    tasks = _llm_agent_wrapper._extract_task_delegation_fcs(event, tools)
    return bool(tasks) and not _llm_agent_wrapper._event_has_eager_tool_calls(event, tools)


def apply() -> bool:
    """Install the guard; true if it stands."""
    return install(
        PATCHES,
        "ADK's search for open tasks has changed; a response that hands on a task beside other "
        "calls may fail its turn in a durable session",
    )
