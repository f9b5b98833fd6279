"""`dex.WorkerTaskService`: one call of PollWorkerTask is one Worker stream.

The rules of grpc.aio that shape this module: two writes on one call must not overlap; a handler
must not return while a write is in flight (the peer would never see the end); and no write may
start after it returned.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from typing import Any

import grpc
import grpc.aio
from dex.dexpb import dex_pb2 as pb

from dex_lite._matching import Matcher, StreamRefused
from dex_lite._wire.errors import shortened
from dex_lite._worker_slot import Slot
from dex_lite._worker_stream import PING, WorkerStream

_LOGGER = logging.getLogger("dex_lite")
_EOF: Any = getattr(grpc.aio, "EOF")  # noqa: B009 (the stubs do not know it)
_SERVICE = "dex.WorkerTaskService"
# How long the end of a stream with a last attempt is looked at before it counts as a half-close.
_HALF_CLOSE_GRACE_S = 0.02
# How long the end of a call waits for the write in flight. It only takes this long if the peer
# stopped reading.
_WRITE_GRACE_S = 5.0


def add_worker_task_service(server: grpc.aio.Server, matcher: Matcher) -> None:
    """Serve Worker streams.

    Not the generated helper: tasks are written as bytes that were encoded once.
    """

    async def poll(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await _Call(context).serve(matcher)

    handlers = {
        "PollWorkerTask": grpc.stream_stream_rpc_method_handler(
            poll,
            request_deserializer=pb.PollWorkerTaskRequest.FromString,
            response_serializer=_identity,
        )
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))


def registration_fault(register: pb.PollWorkerTaskRegister) -> str | None:
    """What is wrong with a registration.

    Strict only where a stream could not be served: a fault stops it for a minute.
    """
    if not register.app_worker_id:
        return "app_worker_id must not be empty"
    if not register.queue:
        return "queue must not be empty"
    if not register.sdk_name:
        return "sdk_name must not be empty"
    if not all(register.flow_types):
        return "flow_types must not contain an empty name"
    if register.app_worker_id in register.flow_types:
        return f"app_worker_id {register.app_worker_id!r} is also one of the flow_types"
    if register.queue != register.app_worker_id and register.queue not in register.flow_types:
        return f"queue {register.queue!r} is neither the app_worker_id nor one of the flow_types"
    return None


class _Call:
    """One call: its reader is the handler, its writer is driven by hand (`_start_write`)."""

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self._context = context
        self._handler = asyncio.current_task()
        self._stream: WorkerStream | None = None
        self._end_details: str | None = None
        self._queue: deque[tuple[bytes, Slot | None]] = deque()
        self._write: Coroutine[Any, Any, None] | None = None
        self._write_slot: Slot | None = None
        self._is_reading = False
        self._is_closed = False
        self._settled: asyncio.Future[None] | None = None

    async def serve(self, matcher: Matcher) -> None:
        request = await self._context.read()
        if request is _EOF:
            return
        if request.WhichOneof("frame") != "register":
            # `abort` raises.
            await self._abort(grpc.StatusCode.INVALID_ARGUMENT, "the first frame must be register")
        register = request.register
        fault = registration_fault(register)
        if fault is not None:
            await self._abort(grpc.StatusCode.INVALID_ARGUMENT, fault)
        self._is_reading = True
        try:
            stream = self._stream = matcher.connect(
                register.app_worker_id, register.queue, register.flow_types, self
            )
        except StreamRefused as error:
            # Not RESOURCE_EXHAUSTED: the SDK takes that as permanent and sleeps on it.
            await self._abort(grpc.StatusCode.UNAVAILABLE, str(error))
            return
        is_clean = False
        try:
            while (request := await self._context.read()) is not _EOF:
                stream.received(request)
            is_clean = not stream.is_busy or await self._is_half_closed(stream)
        except asyncio.CancelledError:
            # The stream broke, or `end` was called.
            if self._end_details is None:
                raise
        finally:
            self._is_reading = False
            stream.ended(is_clean)
            await self._settle()
        if self._end_details is not None:
            await self._abort(grpc.StatusCode.UNAVAILABLE, self._end_details)

    async def _is_half_closed(self, stream: WorkerStream) -> bool:
        """Tell a half-close from a broken stream, which also reads as ended.

        A broken stream fails the next write, and cancels this handler within a few turns.
        """
        self.write(PING)
        await self._flush()
        if self._is_closed or self._write is not None:
            return False
        if stream.slot is not None and stream.slot.task.is_last_attempt:
            await asyncio.sleep(_HALF_CLOSE_GRACE_S)
        for _ in range(3):
            await asyncio.sleep(0)
        return True

    async def _abort(self, code: grpc.StatusCode, details: str) -> None:
        try:
            await self._context.abort(code, shortened(details))
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # nobody is left to hear of it
            _LOGGER.debug("could not end a Worker stream: %r", error)

    def end(self, details: str) -> None:
        """End the call with UNAVAILABLE (Transport)."""
        if self._end_details is None and self._handler is not None:
            self._end_details = details
            if self._is_reading:
                self._handler.cancel()

    # The writer. A write is started in the very call that wants it and finished by callbacks,
    # without a task of its own: this saves a turn of the loop and a task on the way of every Step.

    def write(self, data: bytes, slot: Slot | None = None) -> None:
        """Write after what is being written (Transport)."""
        if self._is_closed:
            return
        if self._write is None:
            self._start_write(data, slot)
        else:
            self._queue.append((data, slot))

    def _start_write(self, data: bytes, slot: Slot | None) -> None:
        self._write = self._context.write(data)
        self._write_slot = slot
        self._advance(is_first=True)

    def _advance(self, _: object = None, is_first: bool = False) -> None:
        assert self._write is not None
        try:
            waited = self._write.send(None)
        except StopIteration:
            self._written()
        except (Exception, asyncio.CancelledError) as error:
            self._write_failed(error)
        else:
            if is_first and self._write_slot is not None:
                self._write_slot.is_write_begun = True
            # What a task does with a future that its coroutine awaits.
            waited._asyncio_future_blocking = False
            waited.add_done_callback(self._advance)

    def _written(self) -> None:
        if self._write_slot is not None:
            self._write_slot.is_write_begun = self._write_slot.is_written = True
        self._write = self._write_slot = None
        if self._queue:
            self._start_write(*self._queue.popleft())
        else:
            self._finish_settling()

    def _write_failed(self, error: BaseException) -> None:
        _LOGGER.debug("write to a Worker stream failed: %r", error)
        self._write = self._write_slot = None
        self._close_writer()
        self._finish_settling()
        # Not at once: this may run inside a call of the engine, which does not expect a report
        # there.
        asyncio.get_running_loop().call_soon(self._report_broken)

    def _report_broken(self) -> None:
        assert self._stream is not None
        self._stream.ended(is_clean=False)
        self.end("a write failed")

    def _close_writer(self) -> None:
        self._is_closed = True
        self._queue.clear()

    def _finish_settling(self) -> None:
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

    async def _settle(self) -> None:
        """Start no more writes, and wait for the one in flight."""
        self._close_writer()
        await self._flush()

    async def _flush(self) -> None:
        """Wait for the writes so far, for a limited time."""
        if self._write is None:
            return
        loop = asyncio.get_running_loop()
        self._settled = loop.create_future()
        timer = loop.call_later(_WRITE_GRACE_S, self._finish_settling)
        try:
            await self._settled
        finally:
            timer.cancel()
            self._settled = None


def _identity(data: bytes) -> bytes:
    return data
