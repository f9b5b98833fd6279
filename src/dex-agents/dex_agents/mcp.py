"""MCP servers as tool sources; needs the extra ``mcp``."""

from __future__ import annotations

try:
    import mcp as _mcp_package
except ImportError as error:
    raise ImportError(
        "dex_agents.mcp needs the package mcp; install dex-agents[mcp]", name="mcp"
    ) from error

if not hasattr(_mcp_package, "MCPError"):
    # ADK also takes the first major version, in which names and types are others.
    raise ImportError(
        "dex_agents.mcp needs version 2 of the package mcp, which is too old here; install "
        "dex-agents[mcp], or give the agent ADK's McpToolset",
        name="mcp",
    )

from dex_agents._mcp.servers import HttpServer, StdioServer
from dex_agents._mcp.source import McpToolSource

__all__ = ["HttpServer", "McpToolSource", "StdioServer"]
