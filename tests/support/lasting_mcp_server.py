"""The MCP server of the tests over HTTP, at an address that outlives its processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

_SERVER = Path(__file__).with_name("mcp_server.py")


@contextlib.asynccontextmanager
async def lasting_server(folder: Path) -> AsyncIterator[str]:
    """The address of a server that is started again whenever it ends, and can always be reached."""
    path = os.pathsep.join(p or os.getcwd() for p in sys.path)

    async def serve(listening: int) -> None:
        command = [sys.executable, str(_SERVER), str(folder), f"fd:{listening}"]
        while True:
            process = await asyncio.create_subprocess_exec(
                *command, pass_fds=[listening], env={**os.environ, "PYTHONPATH": path}
            )
            try:
                await process.wait()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(serve(listener.fileno()))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
