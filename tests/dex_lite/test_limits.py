"""Every limit refuses with its own text, and the guide's table says what the code does."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc
from google.protobuf.empty_pb2 import Empty

import dex_lite
from dex_lite import EngineOptions, Limits
from dex_lite._machine.commands import ExecuteResult
from dex_lite._machine.model import Movement, Output, RunState
from dex_lite._room import check_room
from dex_lite._stream_log import MAX_VALUE_BYTES
from dex_lite._wire.options import BadRequest
from dex_lite._wire.results import ResultReader

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "dex-lite-limits.md"
TEXT = pb.Value(string_value="x")
LONG = "x" * 3_000
Call = Callable[[Any], Awaitable[Any]]


def _rows(heading: str) -> dict[str, list[str]]:
    """Cells of a table of the guide, by the name in the first one."""
    lines = GUIDE.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(heading))
    rows = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        name, *cells = (cell.strip().strip("`") for cell in line.strip("|").split("|"))
        rows[name] = cells
    return rows


LIMITS = _rows("| Limit | Default | What it bounds | Status")


def test_the_table_is_the_code() -> None:
    code = {field.name: getattr(Limits(), field.name) for field in dataclasses.fields(Limits)}
    assert {name: int(cells[0]) for name, cells in LIMITS.items()} == code
    options = EngineOptions()
    times = _rows("| Limit | Default | What it bounds | What happens")
    assert {name: float(cells[0]) for name, cells in times.items()} == {
        name: getattr(options, name) for name in times
    }
    assert f"{MAX_VALUE_BYTES:,} bytes" in GUIDE.read_text()


def test_the_table_names_every_time_limit() -> None:
    times = _rows("| Limit | Default | What it bounds | What happens")
    fields = {field.name for field in dataclasses.fields(EngineOptions)}
    waits = {name for name in fields if re.search(r"(wait|timeout|limit|drain)_s$", name)}
    assert times.keys() == waits - {"step_dispatch_wait_s"}  # it fails nothing by default


@asynccontextmanager
async def _stub(folder: Path, **limits: int) -> AsyncIterator[Any]:
    options = EngineOptions(limits=Limits(**limits), drain_s=0)
    async with (
        dex_lite.open_engine(folder / "engine.db", options=options) as engine,
        grpc.aio.insecure_channel(engine.address) as channel,
    ):
        yield dex_pb2_grpc.FlowServiceStub(channel)


def _start(flow_id: str = "f", **options: Any) -> pb.StartFlowRequest:
    return pb.StartFlowRequest(
        flow_id=flow_id,
        flow_type="F",
        request_id="r",
        flow_start_options=pb.FlowStartOptions(**options),
    )


def _attribute(key: str, text: str = "x", **more: Any) -> pb.AttributeWrite:
    return pb.AttributeWrite(key=key, value=pb.Value(string_value=text), **more)


async def _set(stub: Any, *keys: str, text: str = "x") -> None:
    await stub.StartFlow(_start())
    writes = [_attribute(key, text) for key in keys]
    await stub.SetAttributes(
        pb.SetAttributesRequest(flow_id="f", request_id="s", attributes=writes)
    )


async def _publish(stub: Any, *channels: str) -> None:
    await stub.StartFlow(_start())
    messages = [pb.ChannelMessage(channel_name=name, value=TEXT) for name in channels]
    await stub.PublishToChannel(pb.PublishToChannelRequest(flow_id="f", messages=messages))


async def _too_large_answer(stub: Any) -> None:
    await _set(stub, "a", text=LONG)
    await stub.GetAttributes(pb.GetAttributesRequest(flow_id="f", all_keys=True))


async def _two_flows(stub: Any) -> None:
    await stub.StartFlow(_start("f"))
    await stub.StartFlow(_start("g"))


async def _long_reason(stub: Any) -> None:
    await stub.StartFlow(_start())
    await stub.StopFlow(pb.StopFlowRequest(flow_id="f", reason=LONG))


async def _write_stream(stub: Any, *names: str, capacity: int = 10_000) -> None:
    for name in names:
        await stub.WriteStream(
            pb.WriteStreamRequest(
                flow_id="f",
                flow_type="F",
                stream_name=name,
                stream_capacity_bytes=capacity,
                value=TEXT,
                source="test",
            )
        )


async def _two_calls(stub: Any) -> None:
    await stub.StartFlow(_start())
    waiting = stub.WaitForFlow(pb.WaitForFlowRequest(flow_id="f"))
    try:
        while True:  # until the wait has arrived
            await stub.HealthCheck(Empty())
    finally:
        waiting.cancel()


_index = pb.IndexConfig(enable=True, type="INDEX_TYPE_KEYWORD")
_types = dict.fromkeys(("a", "b"), pb.INDEX_TYPE_KEYWORD)
CALLS: dict[str, tuple[int, Call]] = {
    "request": (2_000, lambda stub: stub.StartFlow(_start(attributes=[_attribute("a", LONG)]))),
    "task": (2_000, _too_large_answer),
    "value": (2_000, lambda stub: stub.StartFlow(_start(attributes=[_attribute("a", LONG)]))),
    "indexed_value": (
        2_000,
        lambda stub: stub.StartFlow(
            _start(attributes=[_attribute("a", LONG, index_config=_index)])
        ),
    ),
    "name": (20, lambda stub: stub.StartFlow(_start("f" * 21))),
    "reason": (2_000, _long_reason),
    "config": (
        2_000,
        lambda stub: stub.StartFlow(
            _start(
                flow_config_override=pb.FlowConfig(
                    attribute_store_names=pb.AttributeStoreNames(names=[LONG])
                )
            )
        ),
    ),
    "attributes": (2, lambda stub: _set(stub, "a", "b", "c")),
    "channels": (2, lambda stub: _publish(stub, "a", "b", "c")),
    "messages": (2, lambda stub: _publish(stub, "a", "a", "a")),
    "indexes": (
        1,
        lambda stub: stub.SyncAttributeIndexes(
            pb.SyncAttributeIndexRequest(attribute_indexes=_types)
        ),
    ),
    "streams": (1, lambda stub: _write_stream(stub, "a", "b")),
    "stream_capacity": (2_000, lambda stub: _write_stream(stub, "a")),
    "open_flows": (1, _two_flows),
    "calls": (1, _two_calls),
}


async def test_a_start_with_too_many_attributes_is_refused(tmp_path: Path) -> None:
    async with _stub(tmp_path, attributes=2) as stub:
        await stub.StartFlow(_start("two", attributes=[_attribute(n, "x") for n in "ab"]))
        with pytest.raises(grpc.aio.AioRpcError, match="at most 2 Attributes") as caught:
            await stub.StartFlow(_start("three", attributes=[_attribute(n, "x") for n in "abc"]))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.aio.AioRpcError, match="NOT_FOUND"):
            await stub.GetFlowSummary(pb.GetFlowSummaryRequest(flow_id="three"))


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_over_a_limit_is_refused(tmp_path: Path, name: str) -> None:
    limit, call = CALLS[name]
    _, _, status, told, _ = LIMITS[name]
    async with _stub(tmp_path, **{name: limit}) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(call(stub), 30)
    assert (caught.value.code().name, told in str(caught.value.details())) == (status, True), (
        caught.value.details()
    )


def _state(**changes: Any) -> RunState:
    state = RunState("f", "r", "F", "q", 0)
    for name, value in changes.items():
        setattr(state, name, value)
    return state


def test_a_result_over_a_limit_is_refused() -> None:
    many = ExecuteResult(next_steps=(Movement("S", b""),) * 3)
    with pytest.raises(BadRequest, match=LIMITS["steps"][3]):
        check_room(_state(), Limits(steps=2), many, next_steps=3)
    full = _state(outputs=[Output("S", "S-1", b"x")] * 2)
    with pytest.raises(BadRequest, match=LIMITS["outputs"][3]):
        check_room(full, Limits(outputs=2), ExecuteResult(close_value=b"x"), outputs=1)
    wait = pb.WaitingCondition(
        waiting_condition_type="WAITING_CONDITION_TYPE_ANY_COMPLETED",
        timer_conditions=[pb.TimerCondition(duration_seconds=1)] * 3,
    )
    waits = pb.InvokeWaitForMethodResponse(waiting_condition=wait)
    reader = ResultReader(Limits(conditions=2), 1_000, {})
    with pytest.raises(BadRequest, match=LIMITS["conditions"][3]):
        reader.wait_for(waits, _state(), "S-1")


def test_what_is_there_may_be_changed_at_the_limit() -> None:
    state = _state(attributes={"a": b"1", "b": b"1"})
    limits = Limits(attributes=2)
    check_room(state, limits, ExecuteResult(attributes=(("a", b"2"),)))
    check_room(state, limits, ExecuteResult(attributes=(("a", None), ("c", b"1"))))
    for writes in (
        ExecuteResult(attributes=(("c", b"1"),)),
        ExecuteResult(secrets=(("c", b"1"),)),
        ExecuteResult(attributes=(("a", None), ("c", b"1")), secrets=(("d", b"1"),)),
    ):
        with pytest.raises(BadRequest, match=LIMITS["attributes"][3]):
            check_room(state, limits, writes)


@pytest.mark.parametrize("name", ["worker_streams", "streams_per_worker"])
async def test_a_worker_with_too_many_streams_is_asked_to_come_later(
    tmp_path: Path, name: str
) -> None:
    """UNAVAILABLE: other codes would let the SDK rest for a minute."""
    register = pb.PollWorkerTaskRequest(
        register=pb.PollWorkerTaskRegister(
            queue="F", app_worker_id="w", flow_types=["F"], sdk_name="s", sdk_version="1"
        )
    )
    options = EngineOptions(limits=Limits(**{name: 1}), drain_s=0)
    async with (
        dex_lite.open_engine(tmp_path / "engine.db", options=options) as engine,
        grpc.aio.insecure_channel(engine.address) as channel,
    ):
        stub: Any = dex_pb2_grpc.WorkerTaskServiceStub(channel)
        first, second = stub.PollWorkerTask(), stub.PollWorkerTask()
        await first.write(register)
        assert (await first.read()).HasField("registered")
        await second.write(register)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await second.read()
        first.cancel()
    _, _, status, told, _ = LIMITS[name]
    assert caught.value.code().name == status
    assert told in str(caught.value.details())
