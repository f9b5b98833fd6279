"""What a tool or its surroundings raised: whose it is, and what the application's callbacks answer."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from google.adk.agents.llm_agent import LlmAgent
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext

from dex_agents._keyboard import is_from_keyboard
from dex_agents_google_adk._adk_compat import first_answer, invocation_of

_LOGGER = logging.getLogger("dex_agents_google_adk")
_CLEANUP_S = 5.0


def ends_the_attempt(error: BaseException) -> bool:
    """Whether it comes from outside, and is no failure of what ran."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return is_from_keyboard(error)


async def result_or_answer(
    running: Awaitable[Any], tool: BaseTool, arguments: dict[str, Any], context: ToolContext
) -> Any:
    """A tool's result, or what a callback answers in its place, as plain ADK orders them.

    Raises:
        Exception: The tool raised it and no callback answered, or a callback raised it.
        asyncio.CancelledError: The call was cancelled; the callbacks were told.
    """
    try:
        return await running
    except asyncio.CancelledError as cancelled:
        await _tell_cancelled(tool, arguments, context, cancelled)
        raise
    except Exception as error:
        answer = await _answer(tool, arguments, context, error)
        if answer is None:
            raise
        return answer


async def _answer(
    tool: BaseTool, arguments: dict[str, Any], context: ToolContext, error: Exception
) -> Any:
    invocation = invocation_of(context)
    answer = await invocation.plugin_manager.run_on_tool_error_callback(
        tool=tool, tool_args=arguments, tool_context=context, error=error
    )
    agent = invocation.agent
    if answer is not None or not isinstance(agent, LlmAgent):
        return answer
    return await first_answer(
        agent.canonical_on_tool_error_callbacks,
        tool=tool,
        args=arguments,
        tool_context=context,
        error=error,
    )


async def _tell_cancelled(
    tool: BaseTool,
    arguments: dict[str, Any],
    context: ToolContext,
    cancelled: asyncio.CancelledError,
) -> None:
    """Run every callback, as ADK does for their cleanup alone: what they answer or raise is not used."""
    invocation = invocation_of(context)
    shown: dict[str, Any] = {"tool": tool, "tool_context": context, "error": cancelled}
    told: list[tuple[Callable[..., Any], dict[str, Any]]] = [
        (plugin.on_tool_error_callback, {**shown, "tool_args": arguments})
        for plugin in invocation.plugin_manager.plugins
    ]
    if isinstance(agent := invocation.agent, LlmAgent):
        callbacks = agent.canonical_on_tool_error_callbacks
        told += [(callback, {**shown, "args": arguments}) for callback in callbacks]
    for callback, given in told:
        try:
            async with asyncio.timeout(_CLEANUP_S):
                answer = callback(**given)
                if inspect.isawaitable(answer):
                    await answer
        except (Exception, asyncio.CancelledError):
            _LOGGER.warning("a callback failed as tool %s was cancelled", tool.name, exc_info=True)
