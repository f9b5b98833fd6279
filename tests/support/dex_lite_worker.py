"""A fake engine behind the matcher, and a fake Worker that speaks single frames."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import grpc
import grpc.aio
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc

from dex_lite._matching import Matcher, Slot, Task, Unstarted
from dex_lite._worker_service import add_worker_task_service
from dex_lite._worker_stream import WorkerStream

EOF: Any = getattr(grpc.aio, "EOF")  # noqa: B009
NO_CAPACITY = pb.POLL_WORKER_TASK_REJECT_REASON_NO_CAPACITY
UNKNOWN_STEP = pb.POLL_WORKER_TASK_REJECT_REASON_UNKNOWN_STEP
UNKNOWN_RPC = pb.POLL_WORKER_TASK_REJECT_REASON_UNKNOWN_RPC
FLOW = "Flow"


class Report(NamedTuple):
    """One call of the matcher to its host."""

    kind: str  # begin, frame, unstarted, lost
    task: Task
    slot: Slot
    detail: Any = None


@dataclass
class FakeHost:
    """Sends every task at once, unless `holds` is set, and keeps what it is told."""

    matcher: Matcher
    holds: bool = False
    refuses_begin: bool = False
    reports: list[Report] = field(default_factory=list)
    on_report: Callable[[Report], None] = lambda report: None
    _queue: asyncio.Queue[Report] = field(default_factory=asyncio.Queue)

    def begin(self, task: Task, slot: Slot) -> bool:
        self._add(Report("begin", task, slot))
        if self.refuses_begin:
            return False
        if not self.holds:
            slot.send(message(task))
        return True

    def frame(self, task: Task, slot: Slot, frame: pb.PollWorkerTaskFrame) -> None:
        self._add(Report("frame", task, slot, frame))

    def unstarted(self, task: Task, slot: Slot, reason: Unstarted) -> None:
        self._add(Report("unstarted", task, slot, reason))

    def lost(self, task: Task, slot: Slot) -> None:
        self._add(Report("lost", task, slot))

    def _add(self, report: Report) -> None:
        self.reports.append(report)
        self._queue.put_nowait(report)
        self.on_report(report)

    async def next(self, *kinds: str) -> Report:
        """The next report of one of these kinds; the others before it are passed over."""
        async with asyncio.timeout(10):
            while True:
                report = await self._queue.get()
                if not kinds or report.kind in kinds:
                    return report

    def count(self, kind: str) -> int:
        return sum(report.kind == kind for report in self.reports)


def message(task: Task) -> pb.PollWorkerTask:
    null = pb.Value(null_value="NULL_VALUE")
    context = pb.Context(flow_id=task.flow_id, run_id="run", step_execution_id="s-1", attempt=1)
    if task.kind == "rpc":
        rpc = pb.InvokeWorkerRPCRequest(
            context=context, flow_type=task.flow_type, rpc_name=task.name, input=null
        )
        return pb.PollWorkerTask(rpc=rpc)
    if task.kind == "wait_for":
        wait_for = pb.InvokeWaitForMethodRequest(
            context=context, flow_type=task.flow_type, step_type=task.name, step_input=null
        )
        return pb.PollWorkerTask(wait_for=wait_for)
    execute = pb.InvokeExecuteMethodRequest(
        context=context, flow_type=task.flow_type, step_type=task.name, step_input=null
    )
    return pb.PollWorkerTask(execute=execute)


def step(name: str = "Step", **options: Any) -> Task:
    return Task("execute", options.pop("flow_type", FLOW), name, "flow-1", **options)


def rpc(name: str = "rpc", **options: Any) -> Task:
    return Task("rpc", options.pop("flow_type", FLOW), name, "flow-1", **options)


def result(task_id: str) -> pb.PollWorkerTaskRequest:
    output = pb.InvokeExecuteMethodOutput(result=pb.InvokeExecuteMethodResponse())
    return pb.PollWorkerTaskRequest(
        task_frame=pb.PollWorkerTaskFrame(task_id=task_id, execute=output)
    )


def rpc_result(task_id: str) -> pb.PollWorkerTaskRequest:
    return pb.PollWorkerTaskRequest(
        task_frame=pb.PollWorkerTaskFrame(task_id=task_id, rpc=pb.InvokeWorkerRPCResponse())
    )


def heartbeat(task_id: str) -> pb.PollWorkerTaskRequest:
    output = pb.InvokeExecuteMethodOutput(heartbeat=pb.StepMethodHeartbeat())
    return pb.PollWorkerTaskRequest(
        task_frame=pb.PollWorkerTaskFrame(task_id=task_id, execute=output)
    )


def reject(task_id: str, reason: pb.PollWorkerTaskRejectReason) -> pb.PollWorkerTaskRequest:
    return pb.PollWorkerTaskRequest(reject=pb.PollWorkerTaskReject(task_id=task_id, reason=reason))


PONG = pb.PollWorkerTaskRequest(pong=pb.PollWorkerTaskPong())


class FakeStream:
    """One poll stream of a fake Worker."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self._writing = asyncio.Lock()  # gRPC breaks a call that is written to twice at a time

    async def send(self, request: pb.PollWorkerTaskRequest) -> None:
        async with self._writing:
            await self.call.write(request)

    async def read(self) -> Any:
        """The next frame, or EOF."""
        async with asyncio.timeout(10):
            return await self.call.read()

    async def expect(self, kind: str) -> Any:
        frame = await self.read()
        assert frame is not EOF, f"expected {kind}, the call ended"
        assert frame.WhichOneof("frame") == kind, f"expected {kind}, got {frame}"
        return getattr(frame, kind)

    async def expect_task(self) -> str:
        return str((await self.expect("task")).task_id)

    async def expect_eof(self) -> None:
        """Read to the end; as the SDK does while it retires a stream, whatever comes is dropped."""
        while await self.read() is not EOF:
            pass

    async def half_close(self) -> None:
        await self.call.done_writing()

    async def end(self) -> tuple[grpc.StatusCode, str]:
        """Wait for the end of the call."""
        async with asyncio.timeout(10):
            return await self.call.code(), await self.call.details()

    def cancel(self) -> None:
        self.call.cancel()


class FakeWorker:
    """Opens streams by hand; each fake Worker has a connection of its own."""

    def __init__(self, address: str, worker_id: str = "worker-1", flow_type: str = FLOW) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.aio.insecure_channel(address, options=options)
        self.id = worker_id
        self.flow_type = flow_type

    async def open(self, queue: str | None = None, **fields: Any) -> FakeStream:
        """Open a stream; without a queue on the Flow type's."""
        stub: Any = dex_pb2_grpc.WorkerTaskServiceStub(self.channel)
        stream = FakeStream(stub.PollWorkerTask())
        register = {
            "queue": self.flow_type if queue is None else queue,
            "app_worker_id": self.id,
            "flow_types": [self.flow_type],
            "sdk_name": "fake",
            "sdk_version": "0",
            **fields,
        }
        await stream.send(pb.PollWorkerTaskRequest(register=pb.PollWorkerTaskRegister(**register)))
        return stream

    async def open_registered(self, queue: str | None = None) -> FakeStream:
        stream = await self.open(queue)
        await stream.expect("registered")
        return stream

    async def close(self) -> None:
        await self.channel.close(grace=None)


class WatchedMatcher(Matcher):
    """A matcher that tells when streams come and go."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._changed = asyncio.Event()

    def connect(self, *arguments: Any) -> WorkerStream:
        stream = super().connect(*arguments)
        self._changed.set()
        return stream

    def disconnected(self, stream: WorkerStream) -> None:
        super().disconnected(stream)
        self._changed.set()

    async def streams(self, count: int) -> None:
        """Wait until so many streams are open."""
        async with asyncio.timeout(10):
            while self._stream_count != count:
                self._changed.clear()
                await self._changed.wait()


class Engine(NamedTuple):
    """A served matcher with its fake host."""

    matcher: WatchedMatcher
    host: FakeHost
    address: str
    server: Any
    workers: list[FakeWorker]

    def worker(self, worker_id: str = "worker-1", flow_type: str = FLOW) -> FakeWorker:
        worker = FakeWorker(self.address, worker_id, flow_type)
        self.workers.append(worker)
        return worker


@asynccontextmanager
async def serve(
    *,
    eager: bool = False,
    register_more: Callable[[Any], None] | None = None,
    most_streams_per_worker: int = 256,
) -> AsyncIterator[Engine]:
    matcher = WatchedMatcher(
        eager_registration=eager, most_streams_per_worker=most_streams_per_worker
    )
    host = FakeHost(matcher)
    matcher.set_host(host)
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    add_worker_task_service(server, matcher)
    if register_more is not None:
        register_more(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    workers: list[FakeWorker] = []
    try:
        yield Engine(matcher, host, f"127.0.0.1:{port}", server, workers)
    finally:
        matcher.close()
        for worker in workers:
            await worker.close()
        await server.stop(grace=1)
