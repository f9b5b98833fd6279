"""The matcher against the pull Worker of the SDK, which nobody changed for it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from dex import (
    AsyncContext,
    AsyncWorker,
    BlobCacheConfig,
    Context,
    Flow,
    PullWorkerOptions,
    Registry,
    RPCResult,
    Step,
    StepDecision,
    StepList,
    WorkerOptions,
    dead_end,
    open_blob_cache,
    rpc,
)
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc

from dex_lite._matching import Task, Unstarted
from support.dex_lite_worker import Engine, Report, serve


class Handlers:
    """What the handlers of the Worker under test do."""

    def __init__(self) -> None:
        self.started: asyncio.Queue[str] = asyncio.Queue()
        self.canceled: asyncio.Queue[str] = asyncio.Queue()
        self.go_on = asyncio.Event()


class Quick(Step[None]):
    async def execute(  # type: ignore[override]
        self, context: AsyncContext, input: None
    ) -> StepDecision:
        return dead_end()


class Slow(Step[None]):
    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers

    async def execute(  # type: ignore[override]
        self, context: AsyncContext, input: None
    ) -> StepDecision:
        self._handlers.started.put_nowait("slow")
        try:
            await self._handlers.go_on.wait()
        except asyncio.CancelledError:
            self._handlers.canceled.put_nowait("slow")
            raise
        return dead_end()


class Failing(Step[None]):
    async def execute(  # type: ignore[override]
        self, context: AsyncContext, input: None
    ) -> StepDecision:
        raise RuntimeError("broken on purpose")


class Unencodable(Step[None]):
    """Fails with a text that the SDK cannot encode: the attempt ends without any frame."""

    async def execute(  # type: ignore[override]
        self, context: AsyncContext, input: None
    ) -> StepDecision:
        raise RuntimeError("\udcff")


class SomeFlow(Flow[None]):
    def __init__(self, handlers: Handlers) -> None:
        self._steps = (Slow(handlers), Failing(), Unencodable())

    def get_flow_type(self) -> str:
        return "Flow"

    def get_steps(self) -> StepList[None]:
        return StepList.start_step(Quick()).other_steps(*self._steps)

    @rpc()
    async def ask(self, context: Context, input: None) -> RPCResult[str]:
        return RPCResult("answer")


class Handshake(dex_pb2_grpc.FlowServiceServicer):  # type: ignore[misc]
    async def GetServerInfo(self, request: Any, context: Any) -> pb.ServerInfo:
        return pb.ServerInfo(
            server_version="test",
            minimum_supported_protocol_version=1,
            current_protocol_version=3,
        )

    async def SyncAttributeIndexes(
        self, request: Any, context: Any
    ) -> pb.SyncAttributeIndexResponse:
        return pb.SyncAttributeIndexResponse()


def _add_handshake(server: Any) -> None:
    dex_pb2_grpc.add_FlowServiceServicer_to_server(Handshake(), server)


@asynccontextmanager
async def sdk_worker(
    engine: Engine, handlers: Handlers, folder: Path, **pull: Any
) -> AsyncIterator[AsyncWorker]:
    cache = open_blob_cache(
        BlobCacheConfig(str(folder / f"cache-{len(os.listdir(folder))}"), 1 << 20)
    )
    options = WorkerOptions(server_address=engine.address, pull=PullWorkerOptions(**pull))
    worker = AsyncWorker(Registry([SomeFlow(handlers)], allow_async_handlers=True), cache, options)
    serving = asyncio.create_task(worker.start())
    try:
        await worker.wait_pull_registered(20)
        yield worker
    finally:
        await worker.close()
        await serving
        cache.close()


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with serve(register_more=_add_handshake) as engine:
        yield engine


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


def task(name: str = "Quick", **options: Any) -> Task:
    return Task("execute", "Flow", name, "flow-1", **options)


def offer_again(engine: Engine) -> None:
    """Do as the engine does with a task that did not start."""

    def on_report(report: Report) -> None:
        if report.kind == "unstarted":
            engine.matcher.offer(report.task)

    engine.host.on_report = on_report


async def test_each_kind_of_task(engine: Engine, handlers: Handlers, tmp_path: Path) -> None:
    async with sdk_worker(engine, handlers, tmp_path):
        engine.matcher.offer(task())
        frame = (await engine.host.next("frame")).detail
        assert frame.execute.result.step_decision.close_decision.close_decision_type
        engine.matcher.offer(Task("rpc", "Flow", "ask", "flow-1"))
        frame = (await engine.host.next("frame")).detail
        assert frame.rpc.output.string_value == "answer"
        engine.matcher.offer(task("Failing"))
        frame = (await engine.host.next("frame")).detail
        assert "broken on purpose" in frame.worker_error.detail


async def test_long_chain_uses_few_streams(
    engine: Engine, handlers: Handlers, tmp_path: Path
) -> None:
    opened = 0
    connect = engine.matcher.connect

    def count(*arguments: Any) -> Any:
        nonlocal opened
        opened += 1
        return connect(*arguments)

    engine.matcher.connect = count  # type: ignore[method-assign]
    offer_again(engine)
    async with sdk_worker(engine, handlers, tmp_path):
        for _ in range(200):
            engine.matcher.offer(task())
            await engine.host.next("frame")
    # With every stream acknowledged at once it would be about one for each task.
    assert opened < 30


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("pull", [{}, {"max_concurrent_tasks": 16, "idle_streams_per_queue": 4}])
async def test_parallel_flows_end_each_once(
    handlers: Handlers, tmp_path: Path, pull: dict[str, int], eager: bool
) -> None:
    async with serve(register_more=_add_handshake, eager=eager) as engine:
        offer_again(engine)
        tasks = [task(is_last_attempt=number % 2 == 0) for number in range(400)]
        async with sdk_worker(engine, handlers, tmp_path, **pull):
            for one in tasks:
                engine.matcher.offer(one)
            ended = [(await engine.host.next("frame", "lost")) for _ in tasks]
        assert {report.task for report in ended} == set(tasks)
        # When in doubt a last attempt counts as run; the SDK retires streams all the time here.
        lost = [report.task for report in ended if report.kind == "lost"]
        assert len(lost) < 8
        assert all(one.is_last_attempt for one in lost)


async def test_unknown_names(engine: Engine, handlers: Handlers, tmp_path: Path) -> None:
    async with sdk_worker(engine, handlers, tmp_path):
        for unknown in (task("Nobody"), Task("rpc", "Flow", "nobody", "flow-1")):
            engine.matcher.offer(unknown)
            report = await engine.host.next("unstarted")
            assert report.detail is Unstarted.UNKNOWN_NAME
            assert engine.matcher.refused_by_all(unknown)


async def test_full_worker_is_not_pestered_and_still_answers_rpcs(
    engine: Engine, handlers: Handlers, tmp_path: Path
) -> None:
    offer_again(engine)
    async with sdk_worker(engine, handlers, tmp_path, max_concurrent_tasks=3):
        for _ in range(20):
            engine.matcher.offer(task("Slow"))
        for _ in range(2):  # one slot is kept for RPCs
            await handlers.started.get()
        for _ in range(30):
            engine.matcher.offer(Task("rpc", "Flow", "ask", "flow-1"))
            await engine.host.next("frame")
        refused = [report for report in engine.host.reports if report.kind == "unstarted"]
        assert sum(report.task.name == "Slow" for report in refused) < 12
        handlers.go_on.set()
        for _ in range(20):
            await engine.host.next("frame")
        assert engine.host.count("lost") == 0


async def test_cancel_reaches_the_handler(
    engine: Engine, handlers: Handlers, tmp_path: Path
) -> None:
    offer_again(engine)
    async with sdk_worker(engine, handlers, tmp_path):
        engine.matcher.offer(task("Slow"))
        slot = (await engine.host.next("begin")).slot
        await handlers.started.get()
        slot.cancel()
        await handlers.canceled.get()
        engine.matcher.offer(task())
        assert (await engine.host.next("frame")).task.name == "Quick"


async def test_handler_that_ends_without_a_frame_is_lost_not_repeated(
    engine: Engine, handlers: Handlers, tmp_path: Path
) -> None:
    offer_again(engine)
    async with sdk_worker(engine, handlers, tmp_path, max_concurrent_tasks=4):
        engine.matcher.offer(task("Unencodable", is_last_attempt=True))
        await engine.host.next("begin")
        # Other work makes the SDK retire streams, the silent one perhaps among them.
        for _ in range(20):
            engine.matcher.offer(task())
            await engine.host.next("frame")
    await engine.matcher.streams(0)  # the Worker's end retires the streams that are left
    assert [report.task.name for report in engine.host.reports if report.kind == "begin"].count(
        "Unencodable"
    ) == 1
    lost = [report for report in engine.host.reports if report.kind == "lost"]
    assert [report.task.name for report in lost] == ["Unencodable"]


async def test_drain_lets_a_handler_finish(
    engine: Engine, handlers: Handlers, tmp_path: Path
) -> None:
    async with sdk_worker(engine, handlers, tmp_path):
        engine.matcher.offer(task("Slow"))
        await handlers.started.get()
        draining = asyncio.create_task(engine.matcher.drain(30))
        await asyncio.sleep(0)
        handlers.go_on.set()
        await draining
        assert (await engine.host.next("frame")).task.name == "Slow"
        engine.matcher.close()


async def test_worker_that_stops_finishes_its_task(
    engine: Engine, handlers: Handlers, tmp_path: Path
) -> None:
    async with sdk_worker(engine, handlers, tmp_path) as worker:
        engine.matcher.offer(task("Slow"))
        await handlers.started.get()
        stopping = asyncio.create_task(worker.stop())
        handlers.go_on.set()
        await stopping
        assert (await engine.host.next("frame", "lost")).kind == "frame"
    assert not engine.matcher.has_workers("Flow")


_WORKER = """
import asyncio, sys, tempfile
from dex import *

class Forever(Step[None]):
    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        print("started", flush=True)
        await asyncio.Event().wait()
        return dead_end()

class SomeFlow(Flow[None]):
    def get_flow_type(self):
        return "Flow"
    def get_steps(self):
        return StepList.start_step(Forever())

async def main():
    cache = open_blob_cache(BlobCacheConfig(tempfile.mkdtemp(), 1 << 20))
    options = WorkerOptions(server_address=sys.argv[1], pull=PullWorkerOptions())
    await AsyncWorker(Registry([SomeFlow()], allow_async_handlers=True), cache, options).start()

asyncio.run(main())
"""


async def test_killed_worker_process_is_noticed_at_once(engine: Engine) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _WORKER, engine.address, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    engine.matcher.offer(task("Forever", is_last_attempt=True))
    assert await process.stdout.readline() == b"started\n"
    process.kill()
    # Long before any heartbeat or ping could tell; `next` waits 10 s.
    assert (await engine.host.next("lost")).task.name == "Forever"
    await process.wait()
    await engine.matcher.streams(0)
