"""An agent that raises a ``KeyboardInterrupt`` at the place that the user's message names."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.apps.app import App
from google.adk.models.llm_request import LlmRequest
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset

from dex_agents import AgentSessionFlow, SourceToolCall, ToolEffect, ToolPolicy
from dex_agents_google_adk import adk_agent_session_flow
from dex_agents_google_adk.testing import ScriptedModel, tool_call
from support.tool_source import ScriptedSource

OF_TURNS = ("model", "callback", "plugin", "toolset")
OF_TOOLS = ("async_tool", "sync_tool", "task_of_a_tool", "thread_of_a_tool", "source_tool")


def _leave(text: str) -> None:
    raise KeyboardInterrupt(text)


def _text_of(context: Any) -> str:
    return str(context.user_content.parts[0].text)


def _answer(request: LlmRequest) -> Any:
    parts = request.contents[-1].parts or []
    if parts[0].function_response is not None:
        return f"told: {parts[0].function_response.response}"
    place = parts[0].text or ""
    if place == "model":
        _leave("model")
    return tool_call(place, {"id": "1"} if place == "source_tool" else {})


def callback(callback_context: Any, llm_request: LlmRequest) -> None:
    """Of the agent, before each model call."""
    if _text_of(callback_context) == "callback":
        _leave("callback")


class Plugin(BasePlugin):
    """Of the app, before each model call."""

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
        """Leave."""
        if _text_of(callback_context) == "plugin":
            _leave("plugin")


class Toolset(BaseToolset):
    """Without tools."""

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        """Leave."""
        if readonly_context is not None and _text_of(readonly_context) == "toolset":
            _leave("toolset")
        return []

    async def close(self) -> None:
        """Nothing is open."""


async def async_tool() -> None:
    """Leave."""
    await asyncio.sleep(0)
    _leave("async_tool")


def sync_tool() -> None:
    """Leave."""
    _leave("sync_tool")


async def task_of_a_tool() -> None:
    """Leave in a task."""
    await asyncio.create_task(async_tool())


async def thread_of_a_tool() -> None:
    """Leave in a thread."""
    await asyncio.to_thread(_leave, "thread_of_a_tool")


def build_flow(folder: Path) -> AgentSessionFlow:
    """The Flow."""
    tools = [async_tool, sync_tool, task_of_a_tool, thread_of_a_tool]
    root = LlmAgent(
        name="root",
        model=ScriptedModel(_answer),
        tools=[*tools, Toolset()],
        before_model_callback=callback,
    )
    once = ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=False)
    return adk_agent_session_flow(
        App(name="exiting", root_agent=root, plugins=[Plugin("leaves")]),
        flow_type="Exiting",
        tool_policies={tool.__name__: once for tool in tools},
        tool_sources=[_source("source_tool"), _source("never_listed", is_listed=False)],
    )


def _source(tool: str, *, is_listed: bool = True) -> ScriptedSource:
    async def leave(*_: object) -> None:
        _leave(tool)

    runs_once = SourceToolCall(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=False)
    source = ScriptedSource([tool], name=tool, calls={tool: runs_once}, runs={tool: leave})
    source.listing = None if is_listed else leave
    return source
