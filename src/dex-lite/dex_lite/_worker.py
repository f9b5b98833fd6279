"""One Worker process as the matcher sees it: its queues, its free streams, what it refused."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from itertools import islice

from dex_lite._worker_load import WorkerLoad
from dex_lite._worker_slot import Slot, Task
from dex_lite._worker_stream import WorkerStream

# Idle registered streams that a queue keeps although none of them was needed.
_SPARE_STREAMS = 1
# So many at a time go back to the reserves, so that a busy Worker hardly notices.
_RECALLED_AT_ONCE = 8


class Queue:
    """Free streams of one Worker on one queue, the longest free first."""

    __slots__ = ("busy", "fewest_idle", "idle", "registered", "reserves")

    def __init__(self) -> None:
        self.idle: OrderedDict[WorkerStream, None] = OrderedDict()
        self.reserves: OrderedDict[WorkerStream, None] = OrderedDict()
        self.registered = 0
        self.busy = 0  # registered ones whose task was sent and has not ended
        self.fewest_idle = 0  # at a time, since `take_surplus` was called last

    def add(self, stream: WorkerStream, *, is_first: bool) -> None:
        """The stream is free: as the first one, or as the last."""
        streams = self.idle if stream.is_registered else self.reserves
        streams[stream] = None
        if is_first:
            streams.move_to_end(stream, last=False)

    def remove(self, stream: WorkerStream) -> None:
        """The stream is not free any more; harmless if it was not."""
        self.reserves.pop(stream, None)
        if stream in self.idle:
            del self.idle[stream]
            self.fewest_idle = min(self.fewest_idle, len(self.idle))

    def free(self, is_registered: bool) -> OrderedDict[WorkerStream, None]:
        return self.idle if is_registered else self.reserves

    def take_surplus(self) -> list[WorkerStream]:
        """Some of the registered streams that nobody needed since the last call; they are free no more."""
        count = min(self.fewest_idle - _SPARE_STREAMS, _RECALLED_AT_ONCE)
        surplus = list(islice(self.idle, max(0, count)))
        for stream in surplus:
            del self.idle[stream]
        self.fewest_idle = len(self.idle)
        return surplus


class Worker:
    """One Worker process, as long as it has a stream."""

    __slots__ = (
        "flow_types",
        "id",
        "is_silent",
        "load",
        "parked",
        "queues",
        "refused",
        "resting",
        "streams",
    )

    def __init__(self, worker_id: str, load: WorkerLoad) -> None:
        self.id = worker_id
        self.flow_types: dict[str, None] = {}
        self.queues: dict[str, Queue] = {}
        self.streams: set[WorkerStream] = set()
        self.resting: dict[WorkerStream, asyncio.TimerHandle] = {}
        self.parked: dict[Slot, tuple[bytes, asyncio.TimerHandle]] = {}
        self.refused: set[tuple[bool, str, str]] = set()  # names that the Worker does not know
        self.load = load
        # It owes a sign of life: a process that was stopped keeps its connections for long.
        self.is_silent = False

    def takes(self, task: Task) -> bool:
        if self.is_silent or (self.refused and task.refusal_key in self.refused):
            return False
        return task.kind == "rpc" or self.load.takes_steps()

    def choose(self, task: Task) -> WorkerStream | None:
        """A free stream; a reserve if no other is free, or to make sure of a last attempt."""
        idle = self.find(task.flow_type, True)
        if idle is not None and not (task.is_last_attempt and self._may_retire(idle)):
            return idle
        return self.find(task.flow_type, False) or idle

    def _may_retire(self, idle: WorkerStream) -> bool:
        """Whether the SDK may be retiring this idle stream, and would drop a task unread.

        It does so with surplus idle streams whenever a task starts or ends; never with the only one
        of a queue, and never with a reserve. When little else runs it is not worth a reserve: every
        further registered stream is a surplus one later.
        """
        queue = self.queues[idle.queue]
        return queue.registered - queue.busy > 1 and self.load.in_flight > 1

    def find(self, flow_type: str, is_registered: bool) -> WorkerStream | None:
        """The stream that has been free the longest: one just freed may be about to retire."""
        found: WorkerStream | None = None
        for name in (self.id, flow_type):
            queue = self.queues.get(name)
            if queue is not None:
                stream = next(iter(queue.free(is_registered)), None)
                if stream is not None and (found is None or stream.free_since < found.free_since):
                    found = stream
        return found
