"""A task, the slot in which it travels, and what the engine hears of it."""

from __future__ import annotations

import enum
from collections import OrderedDict
from typing import TYPE_CHECKING, Literal, Protocol

from dex.dexpb import dex_pb2 as pb

from dex_lite._worker_load import Ticket

if TYPE_CHECKING:
    from dex_lite._worker_stream import WorkerStream

TaskKind = Literal["wait_for", "execute", "rpc"]


class Unstarted(enum.Enum):
    """Why a begun task certainly did not start."""

    NO_CAPACITY = "no_capacity"
    UNKNOWN_NAME = "unknown_name"
    NOT_DELIVERED = "not_delivered"
    HALF_CLOSED = "half_closed"


class Task:
    """One ready method or one RPC. Its identity is the object; a subclass may add fields."""

    __slots__ = (
        "flow_id",
        "flow_type",
        "is_last_attempt",
        "kind",
        "name",
        "refusal_key",
        "sticky_worker",
        "waiting",
    )

    def __init__(
        self,
        kind: TaskKind,
        flow_type: str,
        name: str,
        flow_id: str,
        *,
        sticky_worker: str | None = None,
        is_last_attempt: bool = False,
    ) -> None:
        self.kind = kind
        self.flow_type = flow_type
        self.name = name
        self.flow_id = flow_id
        self.sticky_worker = sticky_worker
        self.is_last_attempt = is_last_attempt
        # The matcher's own: what a refusal of the name is remembered by, and where the task waits.
        self.refusal_key = (kind == "rpc", flow_type, name)
        self.waiting: OrderedDict[Task, int] | None = None


class TaskSlot(Protocol):
    """Where a task travels: a stream lent to it, or a call to a listening Worker."""

    task: Task
    worker_id: str
    token: str

    def send(self, task: pb.PollWorkerTask | bytes) -> None:
        """Send the task, once."""

    def cancel(self) -> None:
        """The engine wants no more of this task; nothing more is reported."""

    def give_up(self) -> None:
        """The same, because nothing was heard of it: the Worker may not be there any more."""


class MatcherHost(Protocol):
    """The engine, as the matcher sees it. Calls may come from inside `offer` and `Slot.release`."""

    def begin(self, task: Task, slot: Slot) -> bool:
        """A stream is free for the task.

        False: the task is no longer wanted, and the stream is free again.
        """

    def frame(self, task: Task, slot: Slot, frame: pb.PollWorkerTaskFrame) -> None:
        """A heartbeat, a Stream write or the final frame; after the final one the slot is dead."""

    def unstarted(self, task: Task, slot: Slot, reason: Unstarted) -> None:
        """The task did not start; the slot is dead."""

    def lost(self, task: Task, slot: Slot) -> None:
        """The outcome of the task will stay unknown; the slot is dead."""


class SlotState(enum.Enum):
    LENT = enum.auto()  # the engine has it and has not sent yet
    SENT = enum.auto()
    CANCELED = (
        enum.auto()
    )  # sent, and the engine does not care any more; the Worker may still be busy with it
    DEAD = enum.auto()


class Slot:
    """One free stream lent to one task."""

    __slots__ = (
        "has_frame",
        "has_pong",
        "is_accepted",
        "is_write_begun",
        "is_written",
        "state",
        "stream",
        "task",
        "ticket",
        "token",
        "worker_id",
    )

    def __init__(
        self, stream: WorkerStream, task: Task, worker_id: str, token: str, ticket: Ticket
    ) -> None:
        self.stream = stream
        self.task = task
        self.worker_id = worker_id
        self.token = token  # also the task_id on the wire
        self.ticket = ticket
        self.state = SlotState.LENT
        self.is_accepted = False  # although the Worker was thought to be full
        self.is_write_begun = False
        self.is_written = False
        # Both show that the Worker has the task; only a frame names it.
        self.has_frame = False
        self.has_pong = False

    def send(self, task: pb.PollWorkerTask | bytes) -> None:
        """Send the task, once. Bytes are an encoded PollWorkerTask whose task_id is `token`; a
        message gets it here.

        On a slot that died meanwhile this does nothing: its end has been reported.
        """
        if self.state is SlotState.LENT:
            if not isinstance(task, bytes):
                task.task_id = self.token
                task = task.SerializeToString()
            self.stream.send(self, task)

    def release(self) -> None:
        """Give the stream back instead of sending."""
        if self.state is SlotState.LENT:
            self.stream.take_back(self)

    def cancel(self) -> None:
        """The engine wants no more of this task.

        The Worker is told; nothing more is reported for the slot.
        """
        if self.state is SlotState.LENT:
            self.stream.take_back(self)
        elif self.state is SlotState.SENT:
            self.stream.cancel(self)

    def give_up(self) -> None:
        """The same, because nothing was heard of the task.

        The Worker gets nothing more until it is heard of.
        """
        was_sent = self.state is SlotState.SENT
        self.cancel()
        if was_sent:
            self.stream.ask_whether_alive()
