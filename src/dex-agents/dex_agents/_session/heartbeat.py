"""Signs of life of a Step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from dex import AsyncContext

_T = TypeVar("_T")

_TURNS_UNTIL_SENT = 3  # the SDK's output queue, its reader, its writer


async def first_sign(context: AsyncContext) -> None:
    """Tell the engine that this attempt has begun, before it has any effect.

    The SDK only queues a heartbeat; the turns of the loop let it reach the transport. An engine
    that never heard of an attempt may take it for one that never began, and run it again.

    Raises:
        asyncio.CancelledError: The attempt is over already.
    """
    await context.heartbeat()
    for _ in range(_TURNS_UNTIL_SENT):
        await asyncio.sleep(0)


async def keep_alive(context: AsyncContext, timeout_s: float, work: Awaitable[_T]) -> _T:
    """Do the work, with a heartbeat every third of the timeout.

    No context manager: contextlib sets the traceback of what passes through it, which the SDK's
    ``RetryAfterError`` does not allow.
    """

    async def beat() -> None:
        while True:
            await asyncio.sleep(timeout_s / 3)
            await context.heartbeat()

    task = asyncio.create_task(beat())
    try:
        return await work
    finally:
        task.cancel()
        # Not `await task`: that would also swallow a cancellation of the Step itself.
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()
