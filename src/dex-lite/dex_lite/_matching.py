"""Which task goes to which Worker stream.

A Worker opens streams on its queues: one named after itself, one for each of its Flow types. A task
of a Flow type may go to any stream on that type's queue and to any Worker's own queue; the Worker
that served the Flow last is preferred, because its caches are warm.

Streams are acknowledged lazily. The SDK retires an idle stream as soon as more acknowledged ones
are idle than it wants, and opens a new one whenever one gets busy; with every stream acknowledged
at once it mostly opens and closes streams. So the first stream of a queue is acknowledged at once,
and the others, the reserves, right before their first task. A burst of tasks leaves many streams
acknowledged, and each of them costs the SDK a look at all others whenever a task starts or ends;
those that nobody needed for a while are asked to reconnect, which makes reserves of them again.

A Worker that let a heartbeat pass may hang, with its connection open for a minute more: it is asked,
and gets nothing until it is heard of, so that the next attempt goes to another one.

Invariant between two calls: no waiting task could be given to a free stream of a Worker that is
not silent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterable

from dex_lite._logs import event
from dex_lite._worker import Queue, Worker
from dex_lite._worker_load import WorkerLoad
from dex_lite._worker_slot import MatcherHost, Slot, SlotState, Task, Unstarted
from dex_lite._worker_stream import Transport, WorkerStream

__all__ = ["Matcher", "MatcherHost", "Slot", "StreamRefused", "Task", "Unstarted"]

_SWEEP_S = 5.0
# A stream that refused although it looked free is left alone for a moment, longer each time.
_FIRST_REST_S = 0.002
_MAX_REST_DOUBLINGS = 7
# How long a task whose stream was retired before the send waits for another one.
_PARK_S = 0.1
# A stream that closes so soon after it refused a Step refused because it was closing, not for want
# of capacity.
_FAREWELL_S = 1.0


class StreamRefused(Exception):
    """The stream is over a limit, or the engine is stopping; the Worker should try again later."""


class _Waiting:
    """Tasks of one Flow type without a stream, by name so that a refused name does not hide the
    others.
    """

    __slots__ = ("rpcs", "steps")

    def __init__(self) -> None:
        self.rpcs: dict[str, OrderedDict[Task, int]] = {}
        self.steps: dict[str, OrderedDict[Task, int]] = {}

    def of(self, task: Task) -> dict[str, OrderedDict[Task, int]]:
        return self.rpcs if task.kind == "rpc" else self.steps


class Matcher:
    """Tasks and streams.

    Every method belongs to the loop and returns without waiting, `drain` apart.
    """

    def __init__(
        self,
        host: MatcherHost | None = None,
        *,
        eager_registration: bool = False,
        most_streams: int = 4_096,
        most_streams_per_worker: int = 256,
    ) -> None:
        self._host = host
        self._is_eager = eager_registration
        self._most_streams = most_streams
        self._most_streams_per_worker = most_streams_per_worker
        self._workers: dict[str, Worker] = {}
        # By Flow type, the Worker that got a task last at the end.
        self._by_flow_type: dict[str, dict[str, Worker]] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._waiting_count = 0
        self._sequence = 0
        self._stream_count = 0
        self._sent = 0
        self._drained: asyncio.Future[None] | None = None
        self._is_draining = False
        self.is_closed = False
        self._sweep_timer: asyncio.TimerHandle | None = None

    # For the engine.

    @property
    def host(self) -> MatcherHost:
        assert self._host is not None, "set_host comes before the first stream"
        return self._host

    def set_host(self, host: MatcherHost) -> None:
        self._host = host

    def offer(self, task: Task) -> None:
        """Give the task to a free stream at once, or keep it until there is one."""
        assert task.waiting is None, "the task is already offered"
        stream = None if self._is_draining else self._find(task)
        if stream is not None:
            self._assign(task, stream)
            return
        waiting = self._waiting.get(task.flow_type)
        if waiting is None:
            waiting = self._waiting[task.flow_type] = _Waiting()
        self._sequence += 1
        bucket = waiting.of(task).setdefault(task.name, OrderedDict())
        bucket[task] = self._sequence
        task.waiting = bucket
        self._waiting_count += 1

    def withdraw(self, task: Task) -> None:
        """Forget a task that has not begun; harmless if it has."""
        bucket = task.waiting
        if bucket is None:
            return
        del bucket[task]
        task.waiting = None
        self._waiting_count -= 1
        if not bucket:
            waiting = self._waiting[task.flow_type]
            del waiting.of(task)[task.name]
            if not waiting.rpcs and not waiting.steps:
                del self._waiting[task.flow_type]

    def refused_by_all(self, task: Task) -> bool:
        """Whether there are Workers for the Flow type and none of them knows the name."""
        workers = self._by_flow_type.get(task.flow_type)
        if not workers:
            return False
        return all(task.refusal_key in worker.refused for worker in workers.values())

    def nobody_takes(self, task: Task) -> bool:
        """Whether the task waits, and no Worker that is connected could take it."""
        is_waiting = task.waiting is not None
        return is_waiting and (not self.has_workers(task.flow_type) or self.refused_by_all(task))

    @property
    def depth(self) -> int:
        """Tasks without a stream."""
        return self._waiting_count

    @property
    def stream_count(self) -> int:
        return self._stream_count

    @property
    def worker_count(self) -> int:
        return len(self._workers)

    def has_workers(self, flow_type: str) -> bool:
        return flow_type in self._by_flow_type

    async def drain(self, grace_s: float) -> None:
        """Give out nothing more, ask every Worker to go, and wait for the final frames that come in
        time.
        """
        self._is_draining = True
        for stream in self._streams():
            stream.reconnect("the engine is stopping")
        if self._sent and grace_s > 0:
            loop = asyncio.get_running_loop()
            self._drained = drained = loop.create_future()
            timer = loop.call_later(grace_s, _resolve, drained)
            try:
                await drained
            finally:
                timer.cancel()
                self._drained = None

    def close(self) -> None:
        """End every stream with UNAVAILABLE. The host hears nothing more."""
        self._is_draining = self.is_closed = True
        for stream in self._streams():
            stream.abandon("the engine has stopped")
        self._sent = 0
        if self._drained is not None:
            _resolve(self._drained)
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None

    # For the streams.

    def connect(
        self, worker_id: str, queue: str, flow_types: Iterable[str], transport: Transport
    ) -> WorkerStream:
        """A Worker opened a stream."""
        if self._is_draining:
            raise StreamRefused("the engine is stopping")
        worker = self._workers.get(worker_id)
        if self._stream_count >= self._most_streams:
            raise StreamRefused(
                f"at most {self._most_streams} streams of Workers may be open. Run fewer Workers, or "
                "start the engine with a larger Limits(worker_streams=...)"
            )
        if worker is not None and len(worker.streams) >= self._most_streams_per_worker:
            raise StreamRefused(
                f"at most {self._most_streams_per_worker} streams of one Worker may be open. Give it "
                "fewer Flow types or idle streams, or start the engine with a larger "
                "Limits(streams_per_worker=...)"
            )
        if worker is None:
            worker = self._add_worker(worker_id)
            event(logging.INFO, "worker_connected", "a Worker connected", worker_id=worker_id)
        # Who opens a stream is there, whatever became of the one that was asked.
        worker.is_silent = False
        for flow_type in flow_types:
            if flow_type not in worker.flow_types:
                worker.flow_types[flow_type] = None
                self._by_flow_type.setdefault(flow_type, {})[worker_id] = worker
        stream = WorkerStream(self, worker, queue, transport)
        worker.streams.add(stream)
        self._stream_count += 1
        place = worker.queues.get(queue)
        if place is None:
            place = worker.queues[queue] = Queue()
        if self._is_eager or not place.registered:
            self._acknowledge(place, stream)
        self._start_sweeping()
        self.free(stream)
        return stream

    def free(self, stream: WorkerStream, is_first: bool = False) -> None:
        """The stream can take a task; as the first of its Worker, or as the last."""
        if stream.is_ended or self._is_draining:
            return
        self._sequence += 1
        stream.free_since = -self._sequence if is_first else self._sequence
        stream.worker.queues[stream.queue].add(stream, is_first=is_first)
        worker = stream.worker
        if worker.parked:
            for slot in worker.parked:
                if self.move(slot):
                    task = self.unpark(slot)
                    assert task is not None
                    slot.stream.send(slot, task)
                    return
        if self._waiting_count:
            self.serve(worker)

    def registered(self, stream: WorkerStream) -> None:
        """A reserve was acknowledged on its way to its first task."""
        stream.worker.queues[stream.queue].registered += 1

    def sent(self, stream: WorkerStream) -> None:
        """The stream carries a task from now on."""
        self._sent += 1
        stream.worker.queues[stream.queue].busy += 1

    def forget_sent(self) -> None:
        """The engine no longer waits for one of the sent tasks."""
        self._sent -= 1
        if not self._sent and self._drained is not None:
            _resolve(self._drained)

    def task_ended(self, slot: Slot, state: SlotState) -> None:
        """The slot's task no longer occupies the Worker."""
        worker = slot.stream.worker
        worker.load.end(slot.ticket)
        if state is not SlotState.LENT:
            worker.queues[slot.stream.queue].busy -= 1
            if state is SlotState.SENT:
                self.forget_sent()
        for stream in list(worker.resting):
            self._end_rest(stream)

    def no_capacity(self, slot: Slot) -> None:
        """The stream refused the slot's task, which has been counted off.

        Make the stream free when it makes sense.
        """
        stream = slot.stream
        load = stream.worker.load
        if slot.ticket.is_step and load.in_flight:
            stream.limit_before_refusal = load.step_refused(slot.ticket)
            stream.refused_step_at = asyncio.get_running_loop().time()
            self.free(stream)
            return
        # Nothing of the Worker's could be waited for, or an RPC found every slot taken. Mostly the
        # Worker has sent a final frame and is not yet done with that task: by the time the same
        # stream gets another one it will be. After that, less and less often.
        if not stream.refusals:
            stream.refusals = 1
            self.free(stream, is_first=True)
            return
        rest_s = _FIRST_REST_S * (1 << min(stream.refusals - 1, _MAX_REST_DOUBLINGS))
        stream.refusals += 1
        stream.worker.resting[stream] = asyncio.get_running_loop().call_later(
            rest_s, self._end_rest, stream
        )

    def serve(self, worker: Worker) -> None:
        """Give waiting tasks to the Worker's free streams, RPCs first, then in order of arrival."""
        if worker.is_silent:
            return
        while self._waiting_count and not self._is_draining:
            task = self._next_for(worker)
            if task is None:
                return
            stream = worker.choose(task)
            assert stream is not None
            self.withdraw(task)
            self._assign(task, stream)

    def heard_again(self, worker: Worker) -> None:
        """A Worker that owed a sign of life gave one."""
        worker.is_silent = False
        self.serve(worker)

    def disconnected(self, stream: WorkerStream) -> None:
        """Forget the stream.

        What it carried is reported by the stream itself, between this call and `settle`.
        """
        worker = stream.worker
        worker.streams.discard(stream)
        self._stream_count -= 1
        queue = worker.queues[stream.queue]
        queue.remove(stream)
        rest = worker.resting.pop(stream, None)
        if rest is not None:
            rest.cancel()
        if stream.is_registered:
            queue.registered -= 1
        if not worker.streams:
            for slot in list(worker.parked):
                task = self.unpark(slot)
                assert task is not None
                self.park(slot, task)  # for no time at all: no stream can come
            del self._workers[worker.id]
            event(logging.INFO, "worker_gone", "a Worker closed its streams", worker_id=worker.id)
            worker.load.stop()
            for flow_type in worker.flow_types:
                workers = self._by_flow_type[flow_type]
                del workers[worker.id]
                if not workers:
                    del self._by_flow_type[flow_type]

    def move(self, slot: Slot) -> bool:
        """Lend another stream of the same Worker to a slot whose stream ended before the send."""
        if self._is_draining:
            return False
        worker = slot.stream.worker
        stream = worker.choose(slot.task)
        if stream is None:
            return False
        worker.queues[stream.queue].remove(stream)
        slot.stream = stream
        stream.slot = slot
        return True

    def park(self, slot: Slot, task: bytes) -> None:
        """Keep a task to be sent until its Worker has a free stream again, for a moment."""
        loop = asyncio.get_running_loop()
        delay_s = 0.0 if not slot.stream.worker.streams or self._is_draining else _PARK_S
        timer = loop.call_later(delay_s, self._park_ended, slot)
        slot.stream.worker.parked[slot] = (task, timer)

    def unpark(self, slot: Slot) -> bytes | None:
        parked = slot.stream.worker.parked.pop(slot, None)
        if parked is None:
            return None
        parked[1].cancel()
        return parked[0]

    def _park_ended(self, slot: Slot) -> None:
        del slot.stream.worker.parked[slot]
        if not self.is_closed:
            slot.stream.undelivered(slot)

    def settle(self, stream: WorkerStream, is_clean: bool) -> None:
        """After the loss was reported: keep a stream of the queue acknowledged, and use what became
        possible.
        """
        worker = stream.worker
        if is_clean and stream.refused_step_at > asyncio.get_running_loop().time() - _FAREWELL_S:
            worker.load.restore(stream.limit_before_refusal)
        queue = worker.queues[stream.queue]
        if not queue.registered and queue.reserves and not self._is_draining:
            reserve = next(iter(queue.reserves))
            queue.remove(reserve)
            self._acknowledge(queue, reserve)
            self.free(reserve)
        self.serve(worker)

    # Inside.

    def _add_worker(self, worker_id: str) -> Worker:
        worker = Worker(worker_id, WorkerLoad(lambda: self.serve(worker)))
        self._workers[worker_id] = worker
        return worker

    def _acknowledge(self, queue: Queue, stream: WorkerStream) -> None:
        stream.acknowledge()
        queue.registered += 1

    def _find(self, task: Task) -> WorkerStream | None:
        flow_type = task.flow_type
        workers = self._by_flow_type.get(flow_type)
        if not workers:
            return None
        if task.sticky_worker is not None:
            worker = workers.get(task.sticky_worker)
            if worker is not None and worker.takes(task):
                stream = worker.choose(task)
                if stream is not None:
                    return stream
        found: WorkerStream | None = None
        for worker in workers.values():
            if worker.takes(task):
                stream = worker.choose(task)
                if stream is not None:
                    if stream.is_registered or task.is_last_attempt:
                        return stream
                    found = found or stream
        return found

    def _assign(self, task: Task, stream: WorkerStream) -> None:
        worker = stream.worker
        worker.queues[stream.queue].remove(stream)
        workers = self._by_flow_type[task.flow_type]
        if len(workers) > 1:
            workers[worker.id] = workers.pop(worker.id)
        slot = stream.lend(task, worker.load.begin(task.kind != "rpc"))
        if not self.host.begin(task, slot):
            slot.release()

    def _next_for(self, worker: Worker) -> Task | None:
        found: Task | None = None
        found_rank = (True, 0)
        takes_steps = worker.load.takes_steps()
        for flow_type in worker.flow_types:
            waiting = self._waiting.get(flow_type)
            if waiting is None or not (
                worker.find(flow_type, True) or worker.find(flow_type, False)
            ):
                continue
            for is_step, buckets in ((False, waiting.rpcs), (True, waiting.steps)):
                if is_step and not takes_steps:
                    continue
                for bucket in buckets.values():
                    task, number = next(iter(bucket.items()))
                    if (found is None or (is_step, number) < found_rank) and not (
                        worker.refused and task.refusal_key in worker.refused
                    ):
                        found, found_rank = task, (is_step, number)
        return found

    def _end_rest(self, stream: WorkerStream) -> None:
        rest = stream.worker.resting.pop(stream, None)
        if rest is not None:
            rest.cancel()
            self.free(stream)

    def _streams(self) -> list[WorkerStream]:
        return [stream for worker in self._workers.values() for stream in worker.streams]

    def _start_sweeping(self) -> None:
        if self._sweep_timer is None and not self.is_closed:
            self._sweep_timer = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)

    def _recall_surplus(self) -> None:
        for worker in self._workers.values():
            for queue in worker.queues.values():
                for stream in queue.take_surplus():
                    stream.recall()

    def _sweep(self) -> None:
        self._sweep_timer = None
        now = asyncio.get_running_loop().time()
        for stream in self._streams():
            stream.check_liveness(now)
        if not (self._is_eager or self._is_draining):
            self._recall_surplus()
        if self._stream_count:
            self._start_sweeping()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
