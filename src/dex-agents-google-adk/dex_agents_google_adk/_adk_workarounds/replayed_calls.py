"""Show ADK once more the response whose calls it replays.

ADK's loop around an agent learns from the response which tasks it hands on and whether it finishes
the agent's own task, and acts when the results are there. When the agent goes on after a pause, the
loop sees the results alone: the finished agent goes on, and a task is passed over.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator
from typing import Any

from google.adk.events.event import Event
from google.adk.flows.llm_flows.base_llm_flow import BaseLlmFlow

from dex_agents_google_adk._adk_workarounds._patch import Patch, install
from dex_agents_google_adk._attempt import AttemptInvocationContext
from dex_agents_google_adk._effects import is_finishing_tool, is_task_tool


def _showing(replay: Any) -> Any:
    async def showing(
        self: Any, invocation_context: Any, model_response_event: Event, llm_request: Any
    ) -> AsyncGenerator[Event, None]:
        tools = llm_request.tools_dict
        called = [tools.get(call.name) for call in model_response_event.get_function_calls()]
        if (
            isinstance(invocation_context, AttemptInvocationContext)
            and invocation_context.attempt.is_replayed(model_response_event)
            and any(is_task_tool(tool) or is_finishing_tool(tool) for tool in called)
        ):
            yield model_response_event.model_copy(deep=True)
        async for event in replay(self, invocation_context, model_response_event, llm_request):
            yield event

    return showing


PATCHES = (
    Patch(
        (BaseLlmFlow,),
        "_replay_function_calls",
        ("self", "invocation_context", "model_response_event", "llm_request"),
        inspect.isasyncgenfunction,
        _showing,
    ),
)


def apply() -> bool:
    """Install the guard; true if it stands."""
    return install(
        PATCHES,
        "ADK's replay of open calls has changed; a task that is handed on or finished beside "
        "ordinary tools may fail its turn in a durable session",
    )
