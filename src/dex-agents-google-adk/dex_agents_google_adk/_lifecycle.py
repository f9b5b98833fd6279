"""Run the callbacks around an agent once per turn, although ADK starts the agent at every
resumption.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.callback_context import CallbackContext

from dex_agents_google_adk._adk_compat import first_content, invocation_of
from dex_agents_google_adk._attempt import Attempt


def for_attempt(root: BaseAgent, attempt: Attempt) -> BaseAgent:
    """The agent to run: ``root``, or a copy whose started agents skip their
    ``before_agent_callback``.

    ``after_agent_callback`` needs nothing here: putting off a call sets ``end_invocation``, at
    which ADK skips it.
    """
    if not attempt.started or not _has_before_callbacks(root):
        return root
    copy = root.clone()
    _wrap(copy, attempt)
    return copy


def _has_before_callbacks(agent: BaseAgent) -> bool:
    return bool(agent.canonical_before_agent_callbacks) or any(
        _has_before_callbacks(child) for child in agent.sub_agents
    )


def _wrap(agent: BaseAgent, attempt: Attempt) -> None:
    agent.before_agent_callback = [
        _unless_resumed(callback, agent.name, attempt)
        for callback in agent.canonical_before_agent_callbacks
    ]
    for child in agent.sub_agents:
        _wrap(child, attempt)


def _unless_resumed(callback: Callable[..., Any], name: str, attempt: Attempt) -> Any:
    async def guarded(callback_context: CallbackContext) -> Any:
        if (name, invocation_of(callback_context).branch) in attempt.resumed:
            return None
        return await first_content([callback], callback_context=callback_context)

    return guarded
