"""A tool source whose listing and calls a test decides."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from dex_agents import (
    DeferredToolExecution,
    SourceTool,
    SourceToolCall,
    ToolCallStepOptions,
    ToolEffect,
    ToolExecutionResult,
)

Run = Callable[[DeferredToolExecution], Awaitable[Any]]
READ = SourceToolCall(ToolEffect.READ)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"id": {"type": "string", "description": "Which one."}},
    "required": ["id"],
}


def tool(name: str) -> SourceTool:
    """A tool with one argument."""
    return SourceTool(name, f"Does {name}.", SCHEMA)


class ScriptedSource:
    """Lists ``tools`` and runs their calls.

    Attributes:
        listed: How often it was listed.
        listing: Awaited by each listing; may fail or hang.
        calls: How the calls of a tool are carried out; reads if it is not said.
        runs: What the calls of a tool do; by default they return their arguments.
        executions: What its Steps got.
    """

    def __init__(
        self,
        tools: Sequence[str] = ("look",),
        *,
        name: str = "shelf",
        declared: Sequence[str] = (),
        calls: Mapping[str, SourceToolCall] | None = None,
        runs: Mapping[str, Run] | None = None,
        options: Mapping[str, ToolCallStepOptions] | None = None,
    ) -> None:
        self.tools = list(tools)
        self.calls = dict(calls or {})
        self.runs = dict(runs or {})
        self.options = dict(options or {})
        self.listed = 0
        self.listing: Callable[[], Awaitable[None]] | None = None
        self.executions: list[DeferredToolExecution] = []
        self._name = name
        self._declared = tuple(declared)
        self._cached: dict[str, SourceTool] = {}

    @property
    def source_name(self) -> str:
        return self._name

    @property
    def declared_tool_names(self) -> Sequence[str]:
        return self._declared

    async def list_tools(self) -> Sequence[SourceTool]:
        self.listed += 1
        if self.listing is not None:
            await self.listing()
        found = [tool(name) for name in self.tools]
        self._cached.update((item.name, item) for item in found)
        return found

    def cached_tools(self) -> Sequence[SourceTool]:
        return list(self._cached.values())

    def build_tool_call(self, tool_name: str, arguments: Mapping[str, Any]) -> SourceToolCall:
        return self.calls.get(tool_name, READ)

    def tool_call_step_options(self, tool_name: str) -> ToolCallStepOptions:
        return self.options.get(tool_name, ToolCallStepOptions())

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        self.executions.append(call)
        run = self.runs.get(call.tool_name)
        result = dict(call.arguments) if run is None else await run(call)
        return result if isinstance(result, ToolExecutionResult) else ToolExecutionResult(result)

    def ran(self) -> list[str]:
        """Tools in the order in which their calls began."""
        return [call.tool_name for call in self.executions]


async def for_ever() -> None:
    """Hang, whatever cancels it."""
    while True:
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
            return
