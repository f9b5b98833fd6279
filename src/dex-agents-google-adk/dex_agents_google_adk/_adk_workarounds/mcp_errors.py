"""ADK turns every failure of an MCP call into a result, so that a write that may have run looks like
one that failed. In a tool Step the call's effect must decide. A call that was refused because the server
had ended the session is attempted again if its effect allows that; else ADK's words stay, as a tool
could have said the same of a session of its own.

Steps aside when ``McpTool`` no longer has the base class whose ``run_async`` raises.
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
_LOST = ("CONNECTION_CLOSED", "REQUEST_TIMEOUT")


def run_of(tool: BaseTool, effect: ToolEffect) -> Callable[..., Awaitable[Any]]:
    """The tool's ``run_async``; for an MCP tool one that raises when the effect must decide."""
    module = sys.modules.get(_MODULE)  # MCP is optional in ADK
    kind = getattr(module, "McpTool", None)
    if kind is None or type(tool) is not kind:
        return tool.run_async
    if not isinstance(tool, BaseAuthenticatedTool):
        warnings.warn(
            "ADK's McpTool has changed; a write whose connection broke is reported as a plain failure",
            AdkWorkaroundWarning,
            stacklevel=2,
        )
        return tool.run_async

    async def run_async(*, args: dict[str, Any], tool_context: Any) -> Any:
        import mcp
        import mcp_types

        try:
            # The confirmation that McpTool asks for itself was given before the Step began.
            return await BaseAuthenticatedTool.run_async(tool, args=args, tool_context=tool_context)
        except mcp.MCPError as error:
            if error.code in [getattr(mcp_types, name) for name in _LOST]:
                raise
            if effect.maximum_attempts > 1 and may_say_ended(error.code, error.message):
                raise
            # The server's own answer, in ADK's words.
            return {"error": f"MCP tool execution failed: {error}"}

    return run_async
