"""Workers in listening mode: the engine calls them at the address that a Flow's config names.

One task is one call. Who cannot be reached has failed the attempt: there is no queue that a Worker could come
back to. Only so that a Worker is not flooded, Steps wait for each other beyond a number of calls at once.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter, deque
from typing import Any, Protocol

import grpc
import grpc.aio
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc
from google.rpc import status_pb2

from dex_lite._timers import now_ms
from dex_lite._wire.errors import DETAILS_KEY
from dex_lite._worker_slot import Task, TaskSlot

_LOGGER = logging.getLogger("dex_lite")
CALLS_AT_ONCE = 256
"""At one address; RPCs come on top of it."""
_CONNECT_S = 3.0
_CHANNELS_KEPT = 100


class DialerHost(Protocol):
    """The engine, as the dialer sees it. Calls may come from inside `offer`."""

    def begin(self, task: Task, slot: TaskSlot) -> bool:
        """The task can go. False: it is no longer wanted."""

    def frame(self, task: Task, slot: TaskSlot, frame: pb.PollWorkerTaskFrame) -> None:
        """A heartbeat, a Stream write or the final frame; after the final one the slot is dead."""

    def lost(self, task: Task, slot: TaskSlot) -> None:
        """The outcome of the task will stay unknown; the slot is dead."""

    def unreachable(self, task: Task, slot: TaskSlot, text: str) -> None:
        """The Worker could not be reached, so the task did not start; the slot is dead."""


class DialedSlot:
    """One call to a listening Worker."""

    __slots__ = (
        "_dialer",
        "_is_dead",
        "_work",
        "address",
        "is_begun",
        "task",
        "token",
        "worker_id",
    )

    def __init__(self, dialer: Dialer, task: Task, address: str) -> None:
        self._dialer = dialer
        self._work: asyncio.Task[None] | None = None
        self._is_dead = False
        self.is_begun = False
        self.address = address
        self.task = task
        self.token = uuid.uuid4().hex
        self.worker_id = ""  # a listening Worker has none

    def send(self, task: pb.PollWorkerTask | bytes) -> None:
        """Make the call, once."""
        if self._is_dead or self._work is not None:
            return
        message = pb.PollWorkerTask.FromString(task) if isinstance(task, bytes) else task
        self._work = self._dialer.run(self, message)

    def cancel(self) -> None:
        """The engine wants no more of this task; nothing more is reported."""
        self._is_dead = True
        if self._work is not None:
            self._work.cancel()
        elif self.is_begun:
            self.is_begun = False
            self._dialer.ended(self)

    def give_up(self) -> None:
        """The same; each task is a call of its own, so the next one finds out by itself."""
        self.cancel()

    @property
    def is_wanted(self) -> bool:
        """Whether the engine still hears of it."""
        return not self._is_dead


class Dialer:
    """Calls listening Workers; one channel for each address."""

    def __init__(self, request_limit: int) -> None:
        self._host: DialerHost | None = None
        self._request_limit = request_limit
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._calls: Counter[str] = Counter()  # tasks that have begun, by address
        self._waiting: dict[str, deque[Task]] = {}  # Steps beyond the limit, by address
        self._work: set[asyncio.Task[None]] = set()
        self._is_draining = False

    def set_host(self, host: DialerHost) -> None:
        """Before the first offer."""
        self._host = host

    def offer(self, task: Task, address: str) -> None:
        """Begin the task, now if not too many Steps are at this Worker."""
        if self._is_draining:
            return  # the next start of the engine takes it up
        if task.kind != "rpc" and self._calls[address] >= CALLS_AT_ONCE:
            self._waiting.setdefault(address, deque()).append(task)
        else:
            self._begin(task, address)

    def _begin(self, task: Task, address: str) -> None:
        assert self._host is not None
        slot = DialedSlot(self, task, address)
        self._calls[address] += 1
        slot.is_begun = True
        if not self._host.begin(task, slot):
            slot.is_begun = False
            self.ended(slot)

    def ended(self, slot: DialedSlot) -> None:
        """One call less; the next Step may go."""
        address = slot.address
        self._calls[address] -= 1
        if not self._calls[address]:
            del self._calls[address]
        waiting = self._waiting.get(address)
        if waiting:
            task = waiting.popleft()
            if not waiting:
                del self._waiting[address]
            # Not here: the engine may be in the middle of what ended the call.
            asyncio.get_running_loop().call_soon(self.offer, task, address)

    def run(self, slot: DialedSlot, message: pb.PollWorkerTask) -> asyncio.Task[None]:
        """The call of a slot, on its way."""
        work = asyncio.get_running_loop().create_task(self._call(slot, message))
        self._work.add(work)

        def done(work: asyncio.Task[None]) -> None:
            self._work.discard(work)
            self.ended(slot)

        work.add_done_callback(done)
        return work

    async def drain(self, grace_s: float) -> None:
        """Begin nothing more, and wait for the calls that end in time."""
        self._is_draining = True
        if self._work and grace_s > 0:
            await asyncio.wait(list(self._work), timeout=grace_s)

    async def close(self) -> None:
        """End all calls and report nothing more."""
        self._is_draining = True
        self._waiting.clear()
        for work in list(self._work):
            work.cancel()
        if self._work:
            await asyncio.wait(list(self._work))
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()

    async def _call(self, slot: DialedSlot, message: pb.PollWorkerTask) -> None:
        assert self._host is not None
        channel = await self._channel(slot.address)
        if not await _is_ready(channel):
            if slot.is_wanted:
                text = f"no Worker answers at {slot.address} within {_CONNECT_S:g} s"
                self._host.unreachable(slot.task, slot, text)
            return
        try:
            await self._exchange(slot, channel, message)
        except grpc.aio.AioRpcError as error:
            self._failed(slot, message, error)
        except Exception:
            _LOGGER.exception("a call to a Worker at %s failed inside the engine", slot.address)
            if slot.is_wanted:
                self._host.lost(slot.task, slot)

    async def _exchange(
        self, slot: DialedSlot, channel: grpc.aio.Channel, message: pb.PollWorkerTask
    ) -> None:
        """Frames as they come; the result only when nothing came behind it."""
        stub: Any = dex_pb2_grpc.WorkerServiceStub(channel)
        timeout_s = max(0.0, message.deadline.ToMilliseconds() - now_ms()) / 1_000
        if message.HasField("rpc"):
            answer = await stub.InvokeWorkerRPC(message.rpc, timeout=timeout_s)
            self._tell(slot, pb.PollWorkerTaskFrame(task_id=slot.token, rpc=answer))
            return
        is_wait_for = message.HasField("wait_for")
        if is_wait_for:
            call = stub.InvokeWaitForMethod(message.wait_for, timeout=timeout_s)
        else:
            call = stub.InvokeExecuteMethod(message.execute, timeout=timeout_s)
        result: pb.PollWorkerTaskFrame | None = None
        fault = ""
        try:
            async for output in call:
                frame = pb.PollWorkerTaskFrame(task_id=slot.token)
                (frame.wait_for if is_wait_for else frame.execute).CopyFrom(output)
                if result is not None:
                    fault = "something came behind the result"
                elif output.HasField("result"):
                    result = frame
                else:
                    self._tell(slot, frame)
        finally:
            call.cancel()
        if result is None:
            fault = "the call ended without a result"
        if fault or result is None:
            result = pb.PollWorkerTaskFrame(task_id=slot.token)
            result.worker_error.detail = f"invalid result: {fault}"
            result.worker_error.error_type = "INVALID_RESULT"
        self._tell(slot, result)

    def _tell(self, slot: DialedSlot, frame: pb.PollWorkerTaskFrame) -> None:
        assert self._host is not None
        if slot.is_wanted:
            self._host.frame(slot.task, slot, frame)

    def _failed(
        self, slot: DialedSlot, message: pb.PollWorkerTask, error: grpc.aio.AioRpcError
    ) -> None:
        assert self._host is not None
        worker_error = _worker_error(error)
        if worker_error is not None:
            frame = pb.PollWorkerTaskFrame(task_id=slot.token, worker_error=worker_error)
            self._tell(slot, frame)
        elif slot.is_wanted and now_ms() < message.deadline.ToMilliseconds():
            # Past the deadline the engine ends the attempt by its own clock.
            self._host.lost(slot.task, slot)

    async def _channel(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.pop(address, None)
        if channel is None:
            idle = [known for known in self._channels if known not in self._calls]
            if len(self._channels) >= _CHANNELS_KEPT and idle:
                await self._channels.pop(idle[0]).close()
            channel = self._channels.get(address) or grpc.aio.insecure_channel(
                address,
                options=[
                    # All of a headless name's addresses in turn; one address is no different.
                    ("grpc.lb_policy_name", "round_robin"),
                    ("grpc.max_receive_message_length", self._request_limit),
                    ("grpc.max_reconnect_backoff_ms", 1_000),
                    ("grpc.use_local_subchannel_pool", 1),
                ],
            )
        self._channels[address] = channel  # the newest last
        return channel


async def _is_ready(channel: grpc.aio.Channel) -> bool:
    try:
        async with asyncio.timeout(_CONNECT_S):
            await channel.channel_ready()
    except TimeoutError:
        return False
    return True


def _worker_error(error: grpc.aio.AioRpcError) -> pb.WorkerErrorResponse | None:
    """What the handler raised; ``None`` if it was the connection or the Worker itself."""
    if error.code() is not grpc.StatusCode.UNKNOWN:
        return None
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            for detail in status_pb2.Status.FromString(value).details:
                found = pb.WorkerErrorResponse()
                if detail.Unpack(found):
                    return found
    return pb.WorkerErrorResponse(detail=error.details() or "", grpc_status=2)
