"""Signs of life while a model or a tool runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from dex import AsyncContext


@contextlib.asynccontextmanager
async def beating(context: AsyncContext, timeout_s: float) -> AsyncIterator[None]:
    """Heartbeat every third of the timeout as long as the block runs."""

    async def beat() -> None:
        while True:
            await asyncio.sleep(timeout_s / 3)
            await context.heartbeat()

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
        # Not `await task`: that would also swallow a cancellation of the Step itself.
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()
