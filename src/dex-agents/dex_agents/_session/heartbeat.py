"""Signs of life of a Step, and the small value that they carry to the next attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from dex import AsyncContext

from dex_agents import _failpoints
from dex_agents._contract import Json
from dex_agents._keyboard import is_from_keyboard
from dex_agents._session.encoding import decode, encode

_T = TypeVar("_T")

MAX_CHECKPOINT_BYTES = 8 * 1024
MAX_MODEL_CHECKPOINT_BYTES = 64 * 1024
_QUICK_TURNS = 100
_LOOK_EVERY_S = 0.002
_TURNS_UNTIL_SENT = 8  # the SDK's output queue, its reader, its writer, the transport


class StepHeartbeat:
    """The one place that sends heartbeats of an attempt, as each replaces the checkpoint before.

    It is a :class:`dex_agents.StepCheckpoint`.

    Args:
        context: Of the attempt.
        max_bytes: Size of the largest value that may be kept, as stored.
    """

    def __init__(self, context: AsyncContext, max_bytes: int = MAX_CHECKPOINT_BYTES) -> None:
        self._context = context
        self._max_bytes = max_bytes
        self._value = context.get_last_heartbeat_value(bytes)

    @property
    def last(self) -> Json:
        """See :class:`dex_agents.StepCheckpoint`."""
        return decode(self._value) if self._value else None

    async def keep(self, value: Json) -> None:
        """See :class:`dex_agents.StepCheckpoint`.

        Raises:
            ValueError: It is no JSON value, or too large.
        """
        encoded = encode(value)
        if len(encoded) > self._max_bytes:
            raise ValueError(
                f"a checkpoint of {len(encoded)} bytes as stored is larger than "
                f"{self._max_bytes}; keep a reference instead"
            )
        self._value = encoded
        await self.beat()
        await self._wait_until_written()
        _failpoints.reach("checkpoint.kept", self._context.flow_id)

    async def beat(self) -> None:
        """Tell the engine that the attempt is alive.

        Raises:
            asyncio.CancelledError: The attempt is over already.
        """
        if self._value is None:
            await self._context.heartbeat()
        else:
            await self._context.heartbeat(self._value)

    async def send(self) -> None:
        """The same, and let it reach the transport before anything else happens.

        The SDK only queues a heartbeat, and nothing acknowledges it. An engine that never heard of
        an attempt may take it for one that never began, and run it again.
        """
        await self.beat()
        for _ in range(_TURNS_UNTIL_SENT):
            await asyncio.sleep(0)

    async def _wait_until_written(self) -> None:
        """Wait until the newest frame has left for the engine, where it outlives this process.

        The SDK writes one frame after the other and takes the next when the one before is written.
        So a frame more is sent, and has been taken when the queue is empty.
        """
        queue = getattr(getattr(self._context, "_output_emitter", None), "queue", None)
        if not isinstance(queue, asyncio.Queue):
            await self.send()  # another SDK: as well as it goes without looking into it
            return
        await self.beat()
        turns = 0
        while not queue.empty():
            turns += 1
            await asyncio.sleep(0 if turns < _QUICK_TURNS else _LOOK_EVERY_S)


async def keep_alive(
    beat: Callable[[], Awaitable[None]], timeout_s: float, work: Awaitable[_T]
) -> _T:
    """Do the work, with a heartbeat every third of the timeout.

    A ``KeyboardInterrupt`` of the work itself becomes an ordinary failure: the SDK would let it end
    the process.

    No context manager: contextlib sets the traceback of what passes through it, which the SDK's
    ``RetryAfterError`` does not allow.
    """

    async def keep_beating() -> None:
        while True:
            await asyncio.sleep(timeout_s / 3)
            await beat()

    task = asyncio.create_task(keep_beating())
    try:
        return await work
    except KeyboardInterrupt as error:
        if is_from_keyboard(error):
            raise
        raise RuntimeError(f"KeyboardInterrupt: {error}") from error
    finally:
        task.cancel()
        # Not `await task`: that would also swallow a cancellation of the Step itself.
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()
