"""A real MCP server for tests: ``python mcp_server.py FOLDER [PORT | fd:NUMBER]``, else stdio.

It offers what ``FOLDER/tools.json`` names, else everything, and notes each call in
``FOLDER/ledger.jsonl``.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import uvicorn
from mcp import MCPError
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import INVALID_REQUEST, ToolAnnotations

from dex_agents.testing import Ledger

FOLDER = Path(sys.argv[1])
SERVER = MCPServer("notes")
LEDGER = Ledger(FOLDER / "ledger.jsonl")
PNG = b"\x89PNG\r\n\x1a\nnotes"


def read(text: str) -> str:
    """Read a note."""
    LEDGER.record("read", text=text)
    return f"read {text}"


def put(text: str) -> str:
    """Put a note."""
    LEDGER.record("put", text=text)
    return f"put {text}"


def both(text: str) -> str:
    """Has both hints."""
    return text


def add(text: str) -> str:
    """Add a note."""
    LEDGER.record("add", text=text)
    return f"added {text}"


def structured(text: str) -> dict[str, Any]:
    """Return a value."""
    return {"text": text, "size": len(text)}


def draw() -> Image:
    """Draw."""
    return Image(data=PNG, format="png")


def fail(text: str) -> str:
    """Fail, telling a secret."""
    raise ToolError(f"{text} {os.environ.get('NOTES_TOKEN', 's3cret-token')}")


def key(context: Context[Any]) -> str:
    """Show the idempotency key that came with the call."""
    meta: Any = context.request_context.meta
    return str(meta["dex-agents/idempotency-key"])


async def die(text: str) -> str:
    """End the server in the middle of a call."""
    LEDGER.record("die", text=text)
    os._exit(3)


async def die_once(text: str) -> str:
    """End the server in the middle of the first call."""
    LEDGER.record("die_once", text=text)
    if LEDGER.count("die_once") == 1:
        os._exit(3)
    return f"alive {text}"


async def lost(text: str) -> str:
    """Speak like a server that has ended the session."""
    LEDGER.record("lost", text=text)
    raise MCPError(INVALID_REQUEST, "Session not found")


async def hang(text: str) -> str:
    """Never answer."""
    LEDGER.record("hang", text=text)
    await asyncio.sleep(3_600)
    return ""


HINTS = {
    "read": ToolAnnotations(read_only_hint=True),
    "put": ToolAnnotations(idempotent_hint=True),
    "both": ToolAnnotations(read_only_hint=True, idempotent_hint=True),
    "hang": ToolAnnotations(read_only_hint=True),
    "die_once": ToolAnnotations(read_only_hint=True),
    "structured": ToolAnnotations(read_only_hint=True),
    "draw": ToolAnnotations(read_only_hint=True),
}
TOOLS: dict[str, Any] = {
    f.__name__: f
    for f in (read, put, both, add, structured, draw, fail, key, die, die_once, lost, hang)
}


def main() -> None:
    """Serve until stdin ends or SIGTERM."""
    if (FOLDER / "stillborn").exists():
        (FOLDER / "stillborn").unlink()
        os._exit(1)
    LEDGER.record("started", pid=os.getpid())
    wanted = FOLDER / "tools.json"
    names = json.loads(wanted.read_text()) if wanted.exists() else list(TOOLS)
    for name in names:
        SERVER.tool(annotations=HINTS.get(name))(TOOLS[name])
    if (FOLDER / "silent").exists():
        # Alive, and deaf to everything but SIGKILL.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(1)
    if sys.argv[-1].startswith("fd:"):
        # A socket that listens on when the server has died, so that its clients need not be lucky.
        uvicorn.run(SERVER.streamable_http_app(), fd=int(sys.argv[-1][3:]), log_level="warning")
    elif len(sys.argv) > 2:
        SERVER.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
    else:
        SERVER.run("stdio")


if __name__ == "__main__":
    main()
