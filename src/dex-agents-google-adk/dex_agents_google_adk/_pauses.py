"""How an attempt stops at a call or at a model call that it leaves to a later one."""

from __future__ import annotations

from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from dex_agents_google_adk._adk_compat import (
    invocation_of,
)
from dex_agents_google_adk._attempt import Attempt
from dex_agents_google_adk._open_response import AgentKey, DeferredCall, OpenResponse

YIELD_TOOL_NAME = "dex_agents_yield"
_PLACEHOLDER = {"error": "This call has been put off."}


class YieldTool(BaseTool):
    """A call that never answers, so that ADK pauses where the next model call would be."""

    def __init__(self) -> None:
        super().__init__(name=YIELD_TOOL_NAME, description="", is_long_running=True)

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        return None


def yield_answer(
    attempt: Attempt, context: CallbackContext, tools: dict[str, BaseTool]
) -> LlmResponse:
    """An answer that ends the attempt; the next one goes on with a model call."""
    attempt.agent_yields(agent_key(context))
    tools[YIELD_TOOL_NAME] = YieldTool()
    # Without this the agent's after_agent_callback would run for the pause.
    invocation_of(context).end_invocation = True
    call = types.FunctionCall(name=YIELD_TOOL_NAME, args={})
    return LlmResponse(content=types.Content(role="model", parts=[types.Part(function_call=call)]))


def agent_key(context: CallbackContext) -> AgentKey:
    """The agent of a callback, and its branch."""
    invocation = invocation_of(context)
    return (invocation.agent.name if invocation.agent else "", invocation.branch)


def put_off(response: OpenResponse, context: ToolContext, call: DeferredCall) -> dict[str, Any]:
    """Leave a call to a later attempt; what ADK gets in place of its result."""
    call.skip_summarization = context.actions.skip_summarization
    response.deferred[context.function_call_id or ""] = call
    context.request_confirmation(hint=f"{call.tool_name} runs in a Step of its own")
    context.actions.skip_summarization = True
    invocation_of(context).end_invocation = True
    return dict(_PLACEHOLDER)
