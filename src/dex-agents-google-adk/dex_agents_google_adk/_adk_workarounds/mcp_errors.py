"""ADK turns every failure of an MCP call into a result, so that a write that may have run looks like
one that failed. In a tool Step the call's effect must decide. A call that was refused because the server
had ended the session is attempted again if its effect allows that; else ADK's words stay, as a tool
could have said the same of a session of its own.

Names of the MCP package are those that ADK found itself, as ADK takes its first and second major version.

Steps aside when ``McpTool`` no longer has the base class whose ``run_async`` raises, or when its module
has no error of MCP servers any more.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

from google.adk.tools.base_authenticated_tool import BaseAuthenticatedTool
from google.adk.tools.base_tool import BaseTool

from dex_agents._effects import ToolEffect
from dex_agents._mcp.ended import may_say_ended
from dex_agents_google_adk._adk_workarounds import AdkWorkaroundWarning

_MODULE = "google.adk.tools.mcp_tool.mcp_tool"
_TYPES = "mcp.types"
_CLOSED = -32000
_TIMED_OUT = 408  # of MCP 1, which has no name for it


def run_of(tool: BaseTool, effect: ToolEffect) -> Callable[..., Awaitable[Any]]:
    """The tool's ``run_async``; for an MCP tool one that raises when the effect must decide."""
    module = sys.modules.get(_MODULE)  # MCP is optional in ADK
    kind = getattr(module, "McpTool", None)
    if kind is None or type(tool) is not kind:
        return tool.run_async
    mcp_error: Any = getattr(module, "McpError", None)
    is_error = isinstance(mcp_error, type) and issubclass(mcp_error, Exception)
    if not isinstance(tool, BaseAuthenticatedTool) or not is_error:
        warnings.warn(
            "ADK's McpTool has changed; a write whose connection broke is reported as a plain failure",
            AdkWorkaroundWarning,
            stacklevel=2,
        )
        return tool.run_async

    async def run_async(*, args: dict[str, Any], tool_context: Any) -> Any:
        try:
            # The confirmation that McpTool asks for itself was given before the Step began.
            return await BaseAuthenticatedTool.run_async(tool, args=args, tool_context=tool_context)
        except mcp_error as error:
            told = error.error
            if told.code in _codes_of_lost_calls():
                raise
            if effect.maximum_attempts > 1 and may_say_ended(told.code, told.message):
                raise
            # The server's own answer, in ADK's words.
            return {"error": f"MCP tool execution failed: {error}"}

    return run_async


def _codes_of_lost_calls() -> tuple[int, int]:
    """What a client says of a call that has no answer."""
    types = sys.modules.get(_TYPES)
    return (
        getattr(types, "CONNECTION_CLOSED", _CLOSED),
        getattr(types, "REQUEST_TIMEOUT", _TIMED_OUT),
    )
