"""One Worker stream: what the frames on it mean for the task that it carries.

Everything here runs without waiting, so that a final frame leads to the next task's frame in one
call, and a loss is reported before anything is done about the stream.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import secrets
from typing import TYPE_CHECKING, Protocol

from dex.dexpb import dex_pb2 as pb

from dex_lite._worker_load import Ticket
from dex_lite._worker_slot import Slot, SlotState, Task, Unstarted

if TYPE_CHECKING:
    from dex_lite._matching import Matcher
    from dex_lite._worker import Worker

_LOGGER = logging.getLogger("dex_lite")

PING_IDLE_AFTER_S = 30.0
MAX_MISSED_PINGS = 2
# A busy Worker sends a pong every 20 s.
BUSY_SILENCE_S = 60.0

# A refusal comes within a round trip.
_PROBE_REFUSED_WITHIN_S = 0.1

# A Worker reads pings at once; busy ones send pongs of their own after 20 s.
_PING_ANSWERED_WITHIN_S = 5.0

_REGISTERED = pb.PollWorkerTaskResponse(
    registered=pb.PollWorkerTaskRegistered(supports_unknown_name_rejection=True)
).SerializeToString()
PING = pb.PollWorkerTaskResponse(ping=pb.PollWorkerTaskPing()).SerializeToString()
_TASK_TAG = b"\x12"  # field 2 of PollWorkerTaskResponse, length-delimited

_NO_CAPACITY = pb.POLL_WORKER_TASK_REJECT_REASON_NO_CAPACITY
_UNKNOWN_NAME = (
    pb.POLL_WORKER_TASK_REJECT_REASON_UNKNOWN_STEP,
    pb.POLL_WORKER_TASK_REJECT_REASON_UNKNOWN_RPC,
)

# Tokens of different engine processes must differ: a Worker could still answer to an older one.
_TOKEN_PREFIX = secrets.token_hex(6)
_TOKEN_NUMBERS = itertools.count(1)


class Transport(Protocol):
    """The call that carries the stream."""

    def write(self, data: bytes, slot: Slot | None = None) -> None:
        """Write in order, without waiting. Sets the slot's `is_write_begun` and `is_written`."""

    def end(self, details: str) -> None:
        """End the call with UNAVAILABLE once no write is in flight."""


class WorkerStream:
    __slots__ = (
        "_last_heard",
        "_matcher",
        "_missed_pings",
        "_open_pings",
        "_pinged_at",
        "_transport",
        "free_since",
        "is_ended",
        "is_recalled",
        "is_registered",
        "limit_before_refusal",
        "queue",
        "refusals",
        "refused_step_at",
        "slot",
        "worker",
    )

    def __init__(self, matcher: Matcher, worker: Worker, queue: str, transport: Transport) -> None:
        self.worker = worker
        self.queue = queue
        self.slot: Slot | None = None
        self.is_registered = False
        self.is_ended = False
        self.is_recalled = False  # gets no more tasks, and should have ended by the next look
        # Pings that may still be answered; one that came after the end of its task perhaps never
        # is.
        self._open_pings = 0
        self._pinged_at = 0.0
        # The matcher's own.
        self.free_since = 0
        self.refusals = 0
        self.refused_step_at = -math.inf
        self.limit_before_refusal: int | None = None
        self._matcher = matcher
        self._transport = transport
        self._last_heard = asyncio.get_running_loop().time()
        self._missed_pings = 0

    @property
    def is_busy(self) -> bool:
        """Whether the Worker has been sent a task that it has not ended."""
        return self.slot is not None and self.slot.state is not SlotState.LENT

    # For the matcher.

    def acknowledge(self) -> None:
        self.is_registered = True
        self._transport.write(_REGISTERED)

    def lend(self, task: Task, ticket: Ticket) -> Slot:
        token = f"{_TOKEN_PREFIX}-{next(_TOKEN_NUMBERS):x}"
        self.slot = slot = Slot(self, task, self.worker.id, token, ticket)
        return slot

    def reconnect(self, reason: str) -> None:
        frame = pb.PollWorkerTaskResponse(reconnect=pb.PollWorkerTaskReconnect(reason=reason))
        self._transport.write(frame.SerializeToString())

    def recall(self) -> None:
        """Have the Worker open this free stream anew, as a reserve."""
        self.is_recalled = True
        self.reconnect("the stream was not needed; a new one will be acknowledged when it is")

    def abandon(self, details: str) -> None:
        """End the call; the host hears nothing of what it carried."""
        if self.slot is not None:
            self.slot.state = SlotState.DEAD
        if not self.is_ended:
            self.is_ended = True
            self._matcher.disconnected(self)
        self._transport.end(details)

    def check_liveness(self, now: float) -> None:
        silence = now - self._last_heard
        if self.is_recalled:
            self._drop("the Worker did not reconnect")
        elif self.is_busy:
            if silence > BUSY_SILENCE_S:
                self._drop("the Worker has been silent about its task for too long")
        elif self.is_registered and silence >= PING_IDLE_AFTER_S * (self._missed_pings + 1):
            if self._missed_pings >= MAX_MISSED_PINGS:
                self._drop("the Worker did not answer")
            else:
                self._missed_pings += 1
                self._ping()

    # For the slot.

    def send(self, slot: Slot, task: bytes) -> None:
        loop = asyncio.get_running_loop()
        if self.is_ended:
            # There was no other free stream when this one ended; maybe there is one now, or soon.
            if self._matcher.move(slot):
                slot.stream.send(slot, task)
            else:
                self._matcher.park(slot, task)
            return
        slot.state = SlotState.SENT
        self._matcher.sent(self)
        self._last_heard = loop.time()
        if not self.is_registered:
            self.acknowledge()
            self._matcher.registered(self)
        self._transport.write(b"".join((_TASK_TAG, _varint(len(task)), task)), slot)
        if slot.task.is_last_attempt:
            # The pong, or its absence, says whether the Worker read the task.
            self._ping()
        if slot.ticket.is_probe:
            loop.call_later(_PROBE_REFUSED_WITHIN_S, self._accept_probe, slot)

    def take_back(self, slot: Slot) -> None:
        self._matcher.unpark(slot)
        self._end_slot(slot)
        self._matcher.free(self)

    def cancel(self, slot: Slot) -> None:
        slot.state = SlotState.CANCELED
        self._matcher.forget_sent()
        frame = pb.PollWorkerTaskResponse(
            cancel_task=pb.PollWorkerTaskCancelTask(task_id=slot.token)
        )
        self._transport.write(frame.SerializeToString())

    def ask_whether_alive(self) -> None:
        """The Worker did not give the sign of life that it owed."""
        self.worker.is_silent = True
        self._ping()

    # For the call.

    def received(self, request: pb.PollWorkerTaskRequest) -> None:
        self._last_heard = asyncio.get_running_loop().time()
        self._missed_pings = 0
        if self.worker.is_silent:
            self._matcher.heard_again(self.worker)
        slot = self.slot
        kind = request.WhichOneof("frame")
        if kind == "pong":
            self._pong(slot)
            return
        if slot is None or slot.state is SlotState.LENT:
            return  # a frame of a task that is over
        if kind == "task_frame":
            frame = request.task_frame
            if frame.task_id == slot.token:
                self._task_frame(slot, frame)
        elif kind == "reject" and request.reject.task_id == slot.token:
            self._rejected(slot, request.reject.reason)

    def ended(self, is_clean: bool) -> None:
        """The call is over: by a half-close of the Worker (clean), or broken."""
        if self.is_ended:
            return
        self.is_ended = True
        slot = self.slot
        self._matcher.disconnected(self)
        try:
            if slot is not None and slot.state is SlotState.LENT:
                # The SDK retires streams while their tasks wait for the disk; nobody needs to know.
                self._matcher.move(slot)
            elif slot is not None:
                verdict = _verdict(slot, is_clean)
                is_wanted = slot.state is not SlotState.CANCELED
                self._end_slot(slot)
                if is_wanted and verdict is None:
                    self._matcher.host.lost(slot.task, slot)
                elif is_wanted and verdict is not None:
                    self._matcher.host.unstarted(slot.task, slot, verdict)
        finally:
            self._matcher.settle(self, is_clean)

    # Inside.

    def _ping(self) -> None:
        self._open_pings += 1
        self._pinged_at = asyncio.get_running_loop().time()
        self._transport.write(PING)

    def _pong(self, slot: Slot | None) -> None:
        if self._last_heard - self._pinged_at > _PING_ANSWERED_WITHIN_S:
            self._open_pings = 0
        was_asked = self._open_pings > 0
        if was_asked:
            self._open_pings -= 1
        # The pong may answer a ping from before the task. A last attempt must not run twice, so any
        # pong counts for it; for others only the unasked one of a Worker that is busy for long.
        if slot is not None and slot.state is not SlotState.LENT:
            slot.has_pong = slot.has_pong or slot.task.is_last_attempt or not was_asked

    def _task_frame(self, slot: Slot, frame: pb.PollWorkerTaskFrame) -> None:
        output = frame.WhichOneof("output")
        if output is None:
            return
        if output == "execute":
            is_final = frame.execute.WhichOneof("output") == "result"
        elif output == "wait_for":
            is_final = frame.wait_for.WhichOneof("output") == "result"
        else:
            is_final = True
        task = slot.task
        is_wanted = slot.state is SlotState.SENT
        slot.has_frame = True
        self._accept_probe(slot)
        if is_final:
            self.refusals = 0
            self.refused_step_at = -math.inf
            self._end_slot(slot)
            # Free before the engine hears of it: the Flow's next task may take this very stream.
            self._matcher.free(self)
        if not is_wanted:
            return
        if output == task.kind or output == "worker_error":
            self._matcher.host.frame(task, slot, frame)
        elif is_final:
            _LOGGER.warning(
                "Worker %s answered a %s task with %s", self.worker.id, task.kind, output
            )
            self._matcher.host.lost(task, slot)

    def _rejected(self, slot: Slot, reason: pb.PollWorkerTaskRejectReason) -> None:
        task = slot.task
        is_wanted = slot.state is SlotState.SENT
        self._end_slot(slot)
        if slot.has_frame:
            _LOGGER.warning("Worker %s rejected a task that it had started", self.worker.id)
            self._matcher.free(self)
            if is_wanted:
                self._matcher.host.lost(task, slot)
            return
        if reason in _UNKNOWN_NAME:
            self.worker.refused.add(task.refusal_key)
            self._matcher.free(self)
            verdict = Unstarted.UNKNOWN_NAME
        else:
            self._matcher.no_capacity(slot)
            verdict = Unstarted.NO_CAPACITY
        if is_wanted:
            self._matcher.host.unstarted(task, slot, verdict)

    def _accept_probe(self, slot: Slot) -> None:
        """The Worker took a Step although it was thought to be full."""
        if slot.ticket.is_probe and not slot.is_accepted and slot.state is not SlotState.DEAD:
            slot.is_accepted = True
            self.worker.load.probe_accepted()
            self._matcher.serve(self.worker)

    def undelivered(self, slot: Slot) -> None:
        """No stream came for a slot whose own had ended."""
        self._end_slot(slot)
        self._matcher.host.unstarted(slot.task, slot, Unstarted.NOT_DELIVERED)

    def _end_slot(self, slot: Slot) -> None:
        state = slot.state
        slot.state = SlotState.DEAD
        self.slot = None
        self._matcher.task_ended(slot, state)

    def _drop(self, details: str) -> None:
        _LOGGER.warning("stream %s of Worker %s: %s", self.queue, self.worker.id, details)
        self.ended(is_clean=False)
        self._transport.end(details)


def _verdict(slot: Slot, is_clean: bool) -> Unstarted | None:
    """What the end of the stream means for its task; None is an unknown outcome."""
    if not slot.is_write_begun:
        return Unstarted.NOT_DELIVERED
    if slot.has_frame or slot.has_pong:
        return None
    if is_clean:
        return Unstarted.HALF_CLOSED
    if not slot.is_written and not slot.task.is_last_attempt:
        # The write failed on its way. A whole frame hardly got through, but only a task that may
        # run twice may rely on it.
        return Unstarted.NOT_DELIVERED
    return None


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
