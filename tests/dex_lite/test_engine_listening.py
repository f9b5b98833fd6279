"""Workers in listening mode through the real SDK: the engine calls them at the address of the Flow's config."""

# mypy: disable-error-code="override"
# The SDK types handlers as synchronous; it takes coroutines too.

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from dex import (
    AsyncClient,
    AsyncContext,
    AsyncWorker,
    Attribute,
    BlobCacheConfig,
    Client,
    ClientOptions,
    Context,
    Flow,
    FlowConfig,
    FlowResult,
    PersistenceSchema,
    Registry,
    RetryPolicy,
    RPCResult,
    StartFlowOptions,
    Step,
    StepDecision,
    StepExecutionId,
    StepList,
    StepMovement,
    StepOptions,
    StopFlowOptions,
    Stream,
    Wait,
    WaitForStepCompletionOptions,
    Worker,
    WorkerInvocationError,
    WorkerOptions,
    WorkerTarget,
    dead_end,
    force_complete,
    go_to,
    go_to_many,
    open_blob_cache,
    rpc,
)
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc

import dex_lite
from dex_lite import _dialer
from dex_lite._options import EngineOptions
from dex_lite_samples import Chain, Mailbox

WAIT = timedelta(seconds=30)
ONCE = RetryPolicy(maximum_attempts=1)


class Listening:
    """A Worker that listens, and a Client that starts Flows for it."""

    def __init__(self, engine: str, folder: Path, *flows: Flow[Any]) -> None:
        registry = Registry(list(flows), allow_async_handlers=True)
        self._cache = open_blob_cache(BlobCacheConfig(str(folder / "cache"), 1 << 20))
        self.worker = AsyncWorker(
            registry,
            self._cache,
            WorkerOptions(server_address=engine, bind_address="127.0.0.1:0"),
        )
        self._registry, self._engine = registry, engine
        self._task: asyncio.Task[None] | None = None
        self.client: AsyncClient

    async def start(self) -> None:
        self._task = asyncio.create_task(self.worker.start())
        while self.worker.worker_target.address.endswith(":0"):
            assert not self._task.done()
            await asyncio.sleep(0)
        self.client = AsyncClient(
            self._registry,
            self._cache,
            ClientOptions(server_address=self._engine, worker_target=self.worker.worker_target),
        )

    async def call(self, method: Any, flow_id: str, input: object = None) -> Any:
        """The SDK types RPC methods as synchronous; it takes coroutines too."""
        return await self.client.invoke_rpc(method, flow_id, input)

    async def close(self) -> None:
        await self.client.close()
        await self.worker.stop()
        assert self._task is not None
        await self._task
        self._cache.close()


@asynccontextmanager
async def _listen(
    folder: Path, *flows: Flow[Any], options: EngineOptions | None = None
) -> AsyncIterator[Listening]:
    async with dex_lite.open_engine(folder / "engine.db", options=options) as engine:
        app = Listening(engine.address, folder, *flows)
        await app.start()
        try:
            yield app
        finally:
            await app.close()


async def test_chain_and_rpcs(tmp_path: Path) -> None:
    chain, mailbox = Chain(), Mailbox()
    async with _listen(tmp_path, chain, mailbox) as app:
        await app.client.start_flow(chain, "chain", 20)
        await app.client.start_flow(mailbox, "mailbox", 0)
        for text in ("a", "b", "end"):
            await app.call(mailbox.send, "mailbox", text)
        assert (await app.client.wait_for_flow("mailbox", WAIT)).single_output(int) == 3
        assert (await app.client.wait_for_flow("chain", WAIT)).single_output(int) == 0


halves = (Attribute("first", str), Attribute("second", str))


class Carry(Step[None]):
    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        for half, letter in zip(halves, "ab", strict=True):
            half.set(context, letter * 3_000_000)
        return go_to(Look, None)


class Look(Step[None]):
    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        return force_complete(" ".join(half.get(context)[-3:] for half in halves))


class Carrying(Flow[None]):
    def get_steps(self) -> StepList[None]:
        return StepList.start_step(Carry()).other_steps(Look())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(*halves)


async def test_task_larger_than_a_message(tmp_path: Path) -> None:
    flow = Carrying()
    async with _listen(tmp_path, flow) as app:
        await app.client.start_flow(flow, "f", None)
        seen = (await app.client.wait_for_flow("f", WAIT)).single_output(str)
    assert seen == "aaa bbb"


async def test_sync_worker(tmp_path: Path) -> None:
    class Double(Step[int]):
        def wait_for(self, context: Context, input: int) -> Wait:
            return Wait.skip_immediately()

        def execute(self, context: Context, input: int) -> StepDecision:
            return force_complete(2 * input)

    class Doubles(Flow[int]):
        def get_steps(self) -> StepList[int]:
            return StepList.start_step(Double())

        @rpc
        def answer(self, context: Context) -> RPCResult[int]:
            return RPCResult(42)

    flow = Doubles()
    with _port() as port:
        address = f"127.0.0.1:{port}"
    async with dex_lite.open_engine(tmp_path / "engine.db") as engine:
        registry = Registry([flow])
        cache = open_blob_cache(BlobCacheConfig(str(tmp_path / "cache"), 1 << 20))
        worker = Worker(
            registry, cache, WorkerOptions(server_address=engine.address, bind_address=address)
        )
        client = Client(
            registry,
            cache,
            ClientOptions(server_address=engine.address, worker_target=WorkerTarget(address)),
        )
        running = asyncio.create_task(asyncio.to_thread(worker.start))
        async with grpc.aio.insecure_channel(address) as channel:
            await channel.channel_ready()
        await asyncio.to_thread(client.start_flow, flow, "f", 21)
        result: FlowResult = await asyncio.to_thread(client.wait_for_flow, "f", WAIT)
        assert result.single_output(int) == 42
        assert await asyncio.to_thread(client.invoke_rpc, flow.answer, "f") == 42
        await asyncio.to_thread(worker.stop)
        await running
        await asyncio.to_thread(client.close)
        cache.close()


words = Stream("words", str, 10_000)


class Hard(Step[str]):
    """Fails once and then does what its input says."""

    def __init__(self) -> None:
        self.attempts: list[int] = []
        self.seen: list[object] = []
        self.has_begun = asyncio.Event()
        self.is_canceled = asyncio.Event()

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=RetryPolicy(initial_interval=timedelta(seconds=1)))

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        self.attempts.append(context.attempt)
        if context.has_last_heartbeat_value():
            self.seen.append(context.get_last_heartbeat_value(str))
        self.has_begun.set()
        if input == "hang" and context.attempt == 1:
            try:
                await asyncio.Event().wait()
            finally:
                self.is_canceled.set()
        if context.attempt == 1:
            words.write(context, "written")
            await context.heartbeat("kept")
            raise ValueError("the first time")
        return force_complete("done")


class HardFlow(Flow[str]):
    def __init__(self) -> None:
        self.step = Hard()

    def get_steps(self) -> StepList[str]:
        return StepList.start_step(self.step)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(words)

    @rpc
    async def breaks(self, context: Context) -> RPCResult[int]:
        raise ValueError("no such thing")


async def test_failures_heartbeats_and_streams(tmp_path: Path) -> None:
    flow = HardFlow()
    async with _listen(tmp_path, flow) as app:
        await app.client.start_flow(flow, "f", "fail")
        assert (await app.client.wait_for_flow("f", WAIT)).single_output(str) == "done"
        with pytest.raises(WorkerInvocationError, match="no such thing") as caught:
            await app.call(flow.breaks, "f")
        assert caught.value.worker_error_type.endswith("ValueError")
        message = await app.client.read_stream("f", words)
        assert message.value == "written"
    assert flow.step.attempts == [1, 2]
    assert flow.step.seen == ["kept"]


async def test_stopped_flow_cancels_the_call(tmp_path: Path) -> None:
    flow = HardFlow()
    async with _listen(tmp_path, flow) as app:
        await app.client.start_flow(flow, "f", "hang")
        await flow.step.has_begun.wait()
        await app.client.stop_flow("f", StopFlowOptions())
        async with asyncio.timeout(30):
            await flow.step.is_canceled.wait()


async def test_engine_restart_loses_the_call_and_makes_it_again(tmp_path: Path) -> None:
    flow, path = HardFlow(), tmp_path / "engine.db"
    async with dex_lite.open_engine(path, options=EngineOptions(drain_s=0.0)) as engine:
        app = Listening(engine.address, tmp_path, flow)
        await app.start()
        await app.client.start_flow(flow, "f", "hang")
        await flow.step.has_begun.wait()
        port = int(engine.address.rpartition(":")[2])
    async with dex_lite.open_engine(path, port=port):
        async with grpc.aio.insecure_channel(engine.address) as channel:
            stub: Any = dex_pb2_grpc.FlowServiceStub(channel)
            await stub.WaitForFlow(pb.WaitForFlowRequest(flow_id="f"), wait_for_ready=True)
        assert (await app.client.wait_for_flow("f", WAIT)).single_output(str) == "done"
        await app.close()
    assert flow.step.attempts == [1, 2]


@contextmanager
def _port() -> Iterator[int]:
    """A port on which nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


class Lost(Step[None]):
    def get_step_options(self) -> StepOptions:
        policy = RetryPolicy(initial_interval=timedelta(seconds=1))
        return StepOptions(wait_for_retry=policy, execute_retry=policy)

    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        return force_complete(context.attempt)


class LostFlow(Flow[None]):
    def get_steps(self) -> StepList[None]:
        return StepList.start_step(Lost())

    @rpc
    async def answer(self, context: Context) -> RPCResult[int]:
        return RPCResult(1)


async def test_nobody_listens_until_the_config_names_who_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_dialer, "_CONNECT_S", 0.3)
    flow = LostFlow()
    with _port() as port:
        async with _listen(tmp_path, flow) as app:
            here = app.worker.worker_target
            nowhere = FlowConfig(worker_target=WorkerTarget(f"127.0.0.1:{port}"))
            options = StartFlowOptions(config_override=nowhere)
            await app.client.start_flow(flow, "lost", None, options)
            with pytest.raises(WorkerInvocationError, match="no Worker answers"):
                await app.call(flow.answer, "lost")
            await app.client.update_flow_config("lost", FlowConfig(worker_target=here))
            # Its attempts failed until then.
            attempt = (await app.client.wait_for_flow("lost", WAIT)).single_output(int)
            assert attempt > 1


class Guest(Step[None]):
    """Waits until all are there, if they come."""

    here = 0
    most = 0
    may_go: asyncio.Event

    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        Guest.here += 1
        Guest.most = max(Guest.most, Guest.here)
        if Guest.here == 4:
            Guest.may_go.set()
        await Guest.may_go.wait()
        Guest.here -= 1
        return dead_end()


class Invite(Step[None]):
    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        return go_to_many(*(StepMovement.of(Guest, None) for _ in range(12)))


class Party(Flow[None]):
    def get_steps(self) -> StepList[None]:
        return StepList.start_step(Invite()).other_steps(Guest())


async def test_worker_is_not_flooded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_dialer, "CALLS_AT_ONCE", 4)
    Guest.here = Guest.most = 0
    Guest.may_go = asyncio.Event()
    flow = Party()
    async with _listen(tmp_path, flow) as app:
        await app.client.start_flow(flow, "f", None)
        options = WaitForStepCompletionOptions(request_timeout=WAIT)
        for number in range(1, 13):
            step = StepExecutionId("Guest", number)
            await app.client.wait_for_step_completion("f", step, options)
    assert Guest.most == 4


class Rude(dex_pb2_grpc.WorkerServiceServicer):  # type: ignore[misc]
    """Breaks the rules of a call, as the Step's name says."""

    async def InvokeExecuteMethod(
        self, request: pb.InvokeExecuteMethodRequest, context: Any
    ) -> AsyncIterator[pb.InvokeExecuteMethodOutput]:
        output = pb.InvokeExecuteMethodOutput()
        close = output.result.step_decision.close_decision
        close.close_decision_type = pb.CLOSE_DECISION_TYPE_FORCE_COMPLETE
        if request.step_type == "Dies":
            await context.abort(grpc.StatusCode.INTERNAL, "died")
        for _ in range({"Nothing": 0, "Twice": 2}.get(request.step_type, 1)):
            yield output
        if request.step_type == "Behind":
            yield pb.InvokeExecuteMethodOutput(heartbeat=pb.StepMethodHeartbeat())


@pytest.mark.parametrize(
    "name, told",
    [
        ("Nothing", "ended without a result"),
        ("Twice", "something came behind the result"),
        ("Behind", "something came behind the result"),
        ("Dies", "the Worker's connection broke"),
        ("Fine", ""),
    ],
)
async def test_calls_that_break_the_rules_are_failed_attempts(
    tmp_path: Path, name: str, told: str
) -> None:
    worker = grpc.aio.server()
    dex_pb2_grpc.add_WorkerServiceServicer_to_server(Rude(), worker)
    port = worker.add_insecure_port("127.0.0.1:0")
    await worker.start()
    request = pb.StartFlowRequest(flow_id="f", flow_type="F", request_id="r", start_step_type=name)
    request.step_options.skip_wait_for = True
    request.step_options.execute_retry_policy.maximum_attempts = 1
    config = request.flow_start_options.flow_config_override
    config.worker_target.address = f"127.0.0.1:{port}"
    async with (
        dex_lite.open_engine(tmp_path / "engine.db") as engine,
        grpc.aio.insecure_channel(engine.address) as channel,
    ):
        stub: Any = dex_pb2_grpc.FlowServiceStub(channel)
        await stub.StartFlow(request)
        result = await stub.WaitForFlow(pb.WaitForFlowRequest(flow_id="f", wait_time_seconds=30))
    await worker.stop(None)
    assert told in result.error_message
    wanted = pb.FLOW_STATUS_FAILED if told else pb.FLOW_STATUS_COMPLETED
    assert result.flow_status == wanted
