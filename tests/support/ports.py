"""Ports of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import socket


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def wait_for_port(port: int, within_s: float = 60.0) -> None:
    """Until somebody listens there."""
    async with asyncio.timeout(within_s):
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            await asyncio.sleep(0.02)
