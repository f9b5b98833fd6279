"""One MCP server as a tool source."""
