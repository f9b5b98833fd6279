"""Large values as blobs, through the real SDK."""

# mypy: disable-error-code="override"
# The SDK types handlers as synchronous; it takes coroutines too.

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import grpc
import grpc.aio
import pytest
from dex import (
    AsyncContext,
    Attribute,
    AttributeMap,
    BlobCacheConfig,
    Context,
    Flow,
    PersistenceSchema,
    RetryPolicy,
    RPCResult,
    StartFlowOptions,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    StepOptions,
    Wait,
    WorkerInvocationError,
    force_complete,
    open_blob_cache,
    rpc,
)
from dex._async_value_hydrator import AsyncValueHydrator
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc

from dex_lite import EngineOptions, Limits
from dex_lite._blobs import Blobs
from dex_lite._wire.blobs import TaskTooLarge, encoded_task
from dex_lite_samples import App, engine_process, serve

PART = 256 << 10
parts = AttributeMap("parts", bytes)
secret = Attribute("secret", str, hard_delete_on_null=True)
Hook = Callable[[str], None]


class HookedCache:
    """The SDK's cache, which tells what it is asked and given."""

    def __init__(self, folder: Path, size: int, hook: Hook | None = None) -> None:
        self.config = BlobCacheConfig(str(folder / "hooked-cache"), size)
        self._inner = open_blob_cache(self.config)
        self._hook = hook
        self.kept: dict[str, bytes] = {}

    def get(self, blob_id: str) -> bytes | None:
        if self._hook is not None:
            self._hook(blob_id)
        return self._inner.get(blob_id)

    def put(self, blob_id: str, payload: bytes) -> bool:
        self.kept[blob_id] = payload
        return self._inner.put(blob_id, payload)

    def delete(self, blob_id: str) -> None:
        self._inner.delete(blob_id)

    def delete_all(self) -> None:
        self._inner.delete_all()

    def close(self) -> None:
        self._inner.close()


def _digest(values: Mapping[str, bytes]) -> str:
    hashed = hashlib.sha256()
    for key in sorted(values):
        hashed.update(key.encode() + b"\0" + values[key])
    return hashed.hexdigest()


def _seen(context: AsyncContext | Context) -> str:
    return _digest(
        {key: parts.get(context, key) or b"" for key in parts.get_all_instance_keys(context)}
    )


class Use(Step[None]):
    """Ends with what it sees; its WaitFor has seen the same."""

    def __init__(self, max_attempts: int) -> None:
        self.attempts: list[int] = []
        self.waited_with = ""
        self.go_on: asyncio.Event | None = None
        self.has_begun = asyncio.Event()
        self._retry = RetryPolicy(maximum_attempts=max_attempts)

    def get_step_options(self) -> StepOptions:
        return StepOptions(
            wait_for_load_attribute_maps=(parts,),
            execute_load_attribute_maps=(parts,),
            wait_for_retry=self._retry,
            execute_retry=self._retry,
        )

    async def wait_for(self, context: AsyncContext, input: None) -> Wait:
        self.waited_with = _seen(context)
        return Wait.skip_immediately()

    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        self.attempts.append(context.attempt)
        self.has_begun.set()
        if self.go_on is not None:
            await self.go_on.wait()
        return force_complete(_seen(context))


class Large(Flow[None]):
    """Is filled from outside, then uses all of it."""

    def __init__(self, max_attempts: int = 1) -> None:
        self.use = Use(max_attempts)

    def get_steps(self) -> StepList[None]:
        return StepList.without_start_step(self.use)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(parts, secret)

    @rpc
    async def begin(self, context: Context) -> RPCResult[None]:
        return RPCResult(None, (StepMovement(Use, None),))

    @rpc(load_attribute_maps=(parts,))
    async def see(self, context: Context) -> RPCResult[str]:
        return RPCResult(_seen(context))


async def _set(address: str, values: Mapping[str, bytes], flow_id: str = "f") -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = dex_pb2_grpc.FlowServiceStub(channel)
        for key, value in values.items():
            write = pb.AttributeWrite(key=f"parts/{key}")
            write.value.obj_value.encoding = "raw"
            write.value.obj_value.payload = value
            request = pb.SetAttributesRequest(
                flow_id=flow_id, request_id=f"{key}{value[:8].hex()}", attributes=[write]
            )
            await stub.SetAttributes(request)


def _parts(mebibytes: float, size: int = PART) -> dict[str, bytes]:
    return {f"p{i:03}": os.urandom(size) for i in range(int(mebibytes * (1 << 20)) // size)}


async def _filled(app: App, flow: Large, values: Mapping[str, bytes]) -> None:
    await app.client.start_flow(flow, "f", None)
    await _set(app.address, values)


async def _run(app: App, flow: Large, values: Mapping[str, bytes]) -> str:
    await _filled(app, flow, values)
    await app.call(flow.begin, "f")
    return (await app.client.wait_for_flow("f")).single_output(str)


async def test_what_two_messages_hold_needs_no_cache(tmp_path: Path) -> None:
    flow, values = Large(), _parts(7)
    cache = HookedCache(tmp_path, 1)
    async with serve(tmp_path, flow, cache=cache) as app:
        assert await _run(app, flow, values) == flow.use.waited_with == _digest(values)
    assert flow.use.attempts == [1]


async def test_an_rpc_sees_large_values(tmp_path: Path) -> None:
    flow, values = Large(), _parts(7)
    async with serve(tmp_path, flow, cache=HookedCache(tmp_path, 1)) as app:
        await _filled(app, flow, values)
        assert await app.call(flow.see, "f") == _digest(values)


async def test_a_worker_with_a_cache_loads_more_than_one_answer_holds(tmp_path: Path) -> None:
    # Parts of which one answer holds one only.
    flow, values = Large(), _parts(20, 9 << 18)
    cache = HookedCache(tmp_path, 64 << 20)
    async with serve(tmp_path, flow, cache=cache) as app:
        await _filled(app, flow, values)
        assert await app.call(flow.see, "f") == _digest(values)
        assert sum(map(len, cache.kept.values())) > 12 << 20
        cache.delete_all()
        await app.call(flow.begin, "f")
        result = await app.client.wait_for_flow("f")
    assert result.single_output(str) == flow.use.waited_with == _digest(values)
    # Deliveries in which the handler did not begin are no attempts.
    assert flow.use.attempts == [1]


async def test_the_worker_that_has_begun_to_load_gets_the_task_again(tmp_path: Path) -> None:
    flow, values = Large(), _parts(12)
    caches = [HookedCache(tmp_path / name, 64 << 20) for name in ("one", "two")]
    async with serve(tmp_path, flow, cache=caches[0]) as app:
        other = App(app.address, tmp_path, [flow], cache=caches[1])
        await other.start_worker()
        assert await _run(app, flow, values) == flow.use.waited_with == _digest(values)
        await other.close()
    assert flow.use.attempts == [1]
    assert [len(cache.kept) for cache in caches].count(0) == 1


async def test_a_worker_whose_cache_is_too_small_ends_with_an_error(tmp_path: Path) -> None:
    flow = Large(max_attempts=5)
    cache = HookedCache(tmp_path, 1 << 20)
    async with serve(tmp_path, flow, cache=cache) as app:
        await _filled(app, flow, _parts(12))
        with pytest.raises(WorkerInvocationError, match="blob cache does not hold") as raised:
            await app.call(flow.see, "f")
        assert raised.value.worker_error_type == "TASK_TOO_LARGE"
        await app.call(flow.begin, "f")
        failed = await app.client.wait_for_flow("f")
    assert failed.error_message is not None
    assert "blob cache does not hold" in failed.error_message
    assert "max_bytes" in failed.error_message
    assert flow.use.waited_with == ""


async def test_what_no_blobs_may_hold_is_not_sent(tmp_path: Path) -> None:
    flow = Large(max_attempts=5)
    cache = HookedCache(tmp_path, 64 << 20)
    options = EngineOptions(limits=Limits(task_blobs=2 << 20))
    async with serve(tmp_path, flow, cache=cache, options=options) as app:
        await _filled(app, flow, _parts(7))
        await app.call(flow.begin, "f")
        failed = await app.client.wait_for_flow("f")
    assert failed.error_message is not None
    assert "a Worker takes at most 4128768 and 2097152 in blobs" in failed.error_message
    assert flow.use.waited_with == "" and not cache.kept


async def test_what_can_be_deleted_for_good_stays_out_of_the_cache(tmp_path: Path) -> None:
    flow, values = Large(), _parts(6)
    cache = HookedCache(tmp_path, 64 << 20)
    hidden = "hidden " * 100_000
    async with serve(tmp_path, flow, cache=cache) as app:
        start = StartFlowOptions().with_attribute(secret, hidden)
        await app.client.start_flow(flow, "f", None, start)
        await _set(app.address, values)
        assert await app.call(flow.see, "f") == _digest(values)
    assert cache.kept
    assert not any(b"hidden" in payload for payload in cache.kept.values())


class _Gate:
    """Holds the first look into the cache until the test lets it go on."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()

    def __call__(self, blob_id: str) -> None:
        if not self.reached.is_set():
            self.reached.set()
            assert self.go_on.wait(60)


@contextlib.asynccontextmanager
async def _worker_thread(
    address: str, folder: Path, flow: Large, hook: Hook
) -> AsyncIterator[None]:
    """A Worker on a loop of its own, so that its cache may block."""
    started, ended = threading.Event(), threading.Event()

    async def serve_it() -> None:
        app = App(address, folder, [flow], cache=HookedCache(folder, 1, hook))
        await app.start_worker()
        started.set()
        await asyncio.to_thread(ended.wait)
        await app.close()

    serving = asyncio.create_task(asyncio.to_thread(asyncio.run, serve_it()))
    try:
        assert await asyncio.to_thread(started.wait, 60)
        yield
    finally:
        ended.set()
        await serving


async def test_a_blob_stays_while_its_attribute_changes(tmp_path: Path) -> None:
    flow, before, gate = Large(), _parts(6), _Gate()
    async with (
        serve(tmp_path, flow, with_worker=False) as app,
        _worker_thread(app.address, tmp_path, flow, gate),
    ):
        await _filled(app, flow, before)
        await app.call(flow.begin, "f")
        assert await asyncio.to_thread(gate.reached.wait, 60)
        after = _parts(6)
        await _set(app.address, after)
        gate.go_on.set()
        result = await app.client.wait_for_flow("f")
    assert flow.use.waited_with == _digest(before)
    assert result.single_output(str) == _digest(after)


async def test_an_engine_killed_before_the_blobs_are_loaded(tmp_path: Path) -> None:
    flow, values, gate = Large(max_attempts=2), _parts(6), _Gate()
    data = tmp_path / "engine.db"
    async with engine_process(data) as (process, address):
        app = App(address, tmp_path, [flow])
        async with _worker_thread(address, tmp_path, flow, gate):
            await _filled(app, flow, values)
            await app.call(flow.begin, "f")
            assert await asyncio.to_thread(gate.reached.wait, 60)
            process.send_signal(signal.SIGKILL)
            await process.wait()
            async with engine_process(data, int(address.rpartition(":")[2])):
                gate.go_on.set()
                await app.connected()
                result = await app.client.wait_for_flow("f")
                await app.close()
    assert result.single_output(str) == flow.use.waited_with == _digest(values)


def _entry(flow_id: str, blob_id: str) -> pb.LoadBlobRequestEntry:
    value = pb.Value(internal_blob_id_for_obj_value=blob_id)
    return pb.LoadBlobRequestEntry(flow_id=flow_id, blob_value=value)


async def test_only_an_open_task_of_the_flow_makes_a_blob_loadable(tmp_path: Path) -> None:
    flow, values = Large(), _parts(6)
    flow.use.go_on = asyncio.Event()
    cache = HookedCache(tmp_path, 64 << 20)
    async with (
        serve(tmp_path, flow, cache=cache) as app,
        grpc.aio.insecure_channel(app.address) as channel,
    ):
        stub: Any = dex_pb2_grpc.FlowServiceStub(channel)

        async def load(*entries: pb.LoadBlobRequestEntry) -> pb.LoadBlobsResponse:
            response: pb.LoadBlobsResponse = await stub.LoadBlobs(
                pb.LoadBlobsRequest(entries=entries)
            )
            return response

        async def refused(*entries: pb.LoadBlobRequestEntry) -> str:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await load(*entries)
            assert raised.value.code() is grpc.StatusCode.NOT_FOUND
            return raised.value.details() or ""

        await _filled(app, flow, values)
        await app.client.start_flow(flow, "other", None)
        await app.call(flow.begin, "f")
        await flow.use.has_begun.wait()
        names = [key.removeprefix("1:f") for key in cache.kept]
        found = await load(*(_entry("f", name) for name in names))
        assert {value.obj_value.payload for value in found.values.values()} <= set(values.values())
        assert set(found.values) == set(names)
        assert "of Flow 'other'" in await refused(_entry("other", names[0]))
        assert "'unknown'" in await refused(_entry("f", names[0]), _entry("f", "unknown"))
        await refused(pb.LoadBlobRequestEntry(flow_id="f"))
        assert not (await load()).values
        flow.use.go_on.set()
        await app.client.wait_for_flow("f")
        await refused(_entry("f", names[0]))


class _Service:
    """LoadBlobs, without a network."""

    def __init__(self, blobs: Blobs, limit: int) -> None:
        self._blobs = blobs
        self._limit = limit

    async def LoadBlobs(self, request: pb.LoadBlobsRequest) -> pb.LoadBlobsResponse:
        return self._blobs.load(request, self._limit)


def _fill(target: pb.Value, size: int, random: Random) -> None:
    if random.random() < 0.5:
        target.string_value = random.randbytes(size // 2).hex()
    else:
        target.obj_value.encoding = "raw"
        target.obj_value.payload = random.randbytes(size)


def _random_task(random: Random) -> pb.PollWorkerTask:
    """A task with a value at every place that can hold one."""
    task = pb.PollWorkerTask(task_id="t")
    places: list[pb.Value] = []
    kind = random.choice(("wait_for", "execute", "rpc"))
    request = getattr(task, kind)
    request.context.flow_id = "f"
    if kind == "rpc":
        places.append(request.input)
    else:
        places += [request.step_input, request.context.last_heartbeat_value]
    places += [request.attributes.add(key=f"a{i}").value for i in range(5)]
    for name in ("c", "d"):
        messages = request.loaded_channel_messages[name].messages
        places += [messages.add(message_id=str(i)).value for i in range(2)]
    if kind == "execute":
        places.append(request.step_exe_locals.add(key="local").value)
        places.append(request.condition_results.channel_results.add().values.add())
        outputs = request.condition_results.sub_flow_results.add().results
        places.append(outputs.add().completed_step_output)
    for place in places:
        _fill(place, random.choice((0, 100, 60_000, 70_000, 200_000)), random)
    return task


@pytest.mark.parametrize("seed", range(20))
async def test_the_sdk_puts_every_value_back(tmp_path: Path, seed: int) -> None:
    task = _random_task(Random(seed))
    whole = pb.PollWorkerTask.FromString(task.SerializeToString())
    limits = Limits(task=900_000, task_blobs=900_000)
    blobs = Blobs()
    data, contents = encoded_task(task, limits, {"a0"})
    assert len(data) <= limits.task
    sent = pb.PollWorkerTask.FromString(data)
    held = blobs.of_task("f", contents)
    assert bool(held) is (whole.ByteSize() > limits.task)
    kind = sent.WhichOneof("request")
    request = getattr(sent, kind)
    assert request.attributes[0] == getattr(whole, kind).attributes[0]
    hydrator = AsyncValueHydrator(_Service(blobs, limits.task), HookedCache(tmp_path, 1))
    hydrate: Any = {
        "wait_for": hydrator.wait_for_request,
        "execute": hydrator.execute_request,
        "rpc": hydrator.rpc_request,
    }[kind]
    assert await hydrate(request) == getattr(whole, kind)


def test_values_below_the_smallest_blob_stay_in_the_task() -> None:
    task = pb.PollWorkerTask(task_id="t")
    for i in range(20):
        task.rpc.attributes.add(key=str(i)).value.string_value = "x" * 60_000
    with pytest.raises(TaskTooLarge, match="only values from 65536 bytes on"):
        encoded_task(task, Limits(task=1_000_000), ())
