"""How a server says that it has ended a session, as after a restart or a long silence."""

from __future__ import annotations

# INVALID_REQUEST of the Python SDK, what the TypeScript SDK answers, and what a client of MCP 1 says.
_CODES = (-32600, -32001, 32600)
_TEXTS = ("session terminated", "session not found")


def may_say_ended(code: int, message: str) -> bool:
    """Whether an error says so; a tool could use the same words for a session of its own."""
    return code in _CODES and message.lower() in _TEXTS
