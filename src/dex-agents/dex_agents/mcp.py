"""MCP servers as tool sources; needs the extra ``mcp``."""

from __future__ import annotations

try:
    import mcp as _mcp_package  # noqa: F401
except ImportError as error:
    raise ImportError(
        "dex_agents.mcp needs the package mcp; install dex-agents[mcp]", name="mcp"
    ) from error

from dex_agents._mcp.servers import HttpServer, StdioServer
from dex_agents._mcp.source import McpToolSource

__all__ = ["HttpServer", "McpToolSource", "StdioServer"]
