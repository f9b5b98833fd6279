"""Flows that the engine tests run through the real SDK."""

# mypy: disable-error-code="override"
# The SDK types handlers as synchronous; it takes coroutines too.

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest
from dex import (
    AsyncClient,
    AsyncContext,
    AsyncWorker,
    Attribute,
    BlobCache,
    BlobCacheConfig,
    Channel,
    Client,
    ClientOptions,
    Context,
    Credential,
    Flow,
    PersistenceSchema,
    PullWorkerOptions,
    Registry,
    RPCResult,
    Step,
    StepDecision,
    StepList,
    Timer,
    Wait,
    Worker,
    WorkerOptions,
    force_complete,
    go_to,
    graceful_complete,
    open_blob_cache,
    rpc,
)
from dex.dexpb import dex_pb2_grpc
from google.protobuf.empty_pb2 import Empty

import dex_lite
from dex_lite._options import EngineOptions

count = Attribute("count", int)
inbox = Channel("inbox", str)


class Hop(Step[int]):
    """Counts down to zero."""

    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        if input == 0:
            return graceful_complete(0)
        return go_to(Hop, input - 1)


class Chain(Flow[int]):
    """A chain of Steps."""

    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Hop())


class Listen(Step[int]):
    """Waits for a message or a minute."""

    async def wait_for(self, context: AsyncContext, input: int) -> Wait:
        return Wait.any_of(inbox.for_one(), Timer.by_duration(timedelta(seconds=60)))

    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        values = inbox.results(context)
        count.set(context, (count.get(context) or 0) + 1)
        if values and values[0] == "end":
            return force_complete(count.get(context))
        return go_to(Listen, input + 1)


class Mailbox(Flow[int]):
    """Takes messages by RPC until it is told to end."""

    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Listen())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(count, inbox)

    @rpc
    async def send(self, context: Context, text: str) -> RPCResult[int]:
        inbox.publish(context, text)
        return RPCResult(inbox.size(context))

    @rpc
    async def read(self, context: Context) -> RPCResult[int]:
        return RPCResult(count.get(context) or 0)


class App:
    """A Registry with its Client, and as many Workers as a test wants, at one engine."""

    def __init__(
        self,
        address: str,
        folder: Path,
        flows: Sequence[Flow[Any]],
        credential: Credential | None = None,
        cache: BlobCache | None = None,
    ) -> None:
        self.address = address
        self._credential = credential
        self.registry = Registry(list(flows), allow_async_handlers=True)
        self._cache = cache or open_blob_cache(BlobCacheConfig(str(folder / "cache"), 1 << 20))
        self._workers: list[tuple[AsyncWorker, asyncio.Task[None]]] = []
        self.client = AsyncClient(
            self.registry,
            self._cache,
            ClientOptions(server_address=address, credential=credential),
        )

    async def call(self, method: Any, flow_id: str, input: object = None) -> Any:
        """Invoke an RPC. The SDK types RPC methods as synchronous; it takes coroutines too."""
        return await self.client.invoke_rpc(method, flow_id, input)

    async def start_worker(self) -> AsyncWorker:
        """Start a Worker and wait until the engine knows it."""
        worker = AsyncWorker(
            self.registry,
            self._cache,
            WorkerOptions(
                server_address=self.address,
                pull=PullWorkerOptions(max_concurrent_tasks=16, idle_streams_per_queue=2),
                credential=self._credential,
            ),
        )
        self._workers.append((worker, asyncio.create_task(worker.start())))
        await worker.wait_pull_registered(timeout=30)
        return worker

    async def connected(self) -> None:
        """Wait until calls go through again: gRPC shares back-off by address."""
        async with grpc.aio.insecure_channel(self.address) as channel:
            stub: Any = dex_pb2_grpc.FlowServiceStub(channel)
            await stub.HealthCheck(Empty(), wait_for_ready=True)

    async def stop_workers(self) -> None:
        """Stop all Workers."""
        for worker, task in self._workers:
            await worker.stop()
            await task
        self._workers.clear()

    async def close(self) -> None:
        """Stop everything."""
        await self.client.close()
        await self.stop_workers()
        self._cache.close()


@asynccontextmanager
async def serve(
    folder: Path,
    *flows: Flow[Any],
    options: EngineOptions | None = None,
    with_worker: bool = True,
    cache: BlobCache | None = None,
) -> AsyncIterator[App]:
    """An engine on ``folder/engine.db`` and an App at it."""
    async with dex_lite.open_engine(folder / "engine.db", options=options) as engine:
        app = App(engine.address, folder, flows, cache=cache)
        try:
            if with_worker:
                await app.start_worker()
            yield app
        finally:
            await app.close()


class SyncApp:
    """A synchronous Worker and Client, which block: call them in threads of their own."""

    def __init__(self, address: str, folder: Path, flows: Sequence[Flow[Any]]) -> None:
        registry = Registry(list(flows))
        self._cache = open_blob_cache(BlobCacheConfig(str(folder / "sync-cache"), 1 << 20))
        self.client = Client(registry, self._cache, ClientOptions(server_address=address))
        pull = PullWorkerOptions(max_concurrent_tasks=4)
        self.worker = Worker(
            registry, self._cache, WorkerOptions(server_address=address, pull=pull)
        )


@asynccontextmanager
async def serve_sync(folder: Path, *flows: Flow[Any]) -> AsyncIterator[SyncApp]:
    """An engine on ``folder/engine.db`` and a SyncApp at it."""
    async with dex_lite.open_engine(folder / "engine.db") as engine:
        app = SyncApp(engine.address, folder, flows)
        running = asyncio.create_task(asyncio.to_thread(app.worker.start))
        try:
            await asyncio.to_thread(app.worker.wait_pull_registered, 30)
            yield app
        finally:
            await asyncio.to_thread(app.worker.stop)
            await running
            await asyncio.to_thread(app.client.close)
            app._cache.close()


@asynccontextmanager
async def engine_process(
    data: Path, port: int = 0
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """An engine in a process of its own, and its address."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dex_lite", "dev", "--data", str(data), "--port", str(port)),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        found = re.match(r"dex-lite ready on (\S+:\d+), ", line)
        assert found, line
        yield process, found[1]
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def shift_clock(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    """Let engines that are opened from now on see a clock that is so far ahead of the real one."""
    ahead = SimpleNamespace(time_ns=lambda: time.time_ns() + seconds * 10**9)
    monkeypatch.setattr("dex_lite._timers.time", ahead)
