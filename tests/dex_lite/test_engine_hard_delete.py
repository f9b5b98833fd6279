"""Hard-delete Attributes through the real SDK: used like others, and no byte of them left behind."""

# mypy: disable-error-code="override"
# The SDK types handlers as synchronous; it takes coroutines too.

from __future__ import annotations

import asyncio
import sqlite3
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from dex import (
    AsyncContext,
    Attribute,
    AttributeMap,
    Channel,
    Context,
    Flow,
    PersistenceSchema,
    RetryPolicy,
    RPCResult,
    StartFlowOptions,
    Step,
    StepDecision,
    StepList,
    SubFlow,
    SubFlowOptions,
    TimeTravelOptions,
    TimeTravelType,
    Wait,
    force_complete,
    force_fail,
    rpc,
)
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc

from dex_lite_samples import App, serve
from support.cli import command

token = Attribute("token", str, hard_delete_on_null=True)
tokens = AttributeMap("tokens", str, hard_delete_on_null=True)
plain = Attribute("plain", str)
go = Channel("go", str)
FIRST, SECOND = "the-first-secret", "the-second-secret"
WAIT = timedelta(seconds=30)


class Use(Step[str]):
    def __init__(self) -> None:
        self.runs = 0

    async def wait_for(self, context: AsyncContext, input: str) -> Wait:
        return Wait.skip_immediately() if input == "fail once" else Wait.until(go.for_one())

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        self.runs += 1
        if input == "fail once" and self.runs == 1:
            return force_fail("the first run")
        # An output is no place for a secret; only its length is told.
        return force_complete(len(token.get(context) or ""))


class Keeper(Flow[str]):
    def __init__(self) -> None:
        self.step = Use()

    def get_steps(self) -> StepList[str]:
        return StepList.start_step(self.step)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(token, tokens, plain, go)

    @rpc
    async def length(self, context: Context) -> RPCResult[int]:
        return RPCResult(len(token.get(context) or ""))

    @rpc
    async def renew(self, context: Context) -> None:
        plain.set(context, "visible")
        token.set(context, SECOND)
        tokens.set(context, "one", SECOND)

    @rpc
    async def drop(self, context: Context) -> None:
        token.delete(context)
        tokens.delete(context, "one")

    @rpc
    async def push(self, context: Context) -> None:
        go.publish(context, "go")


def _with_token(**options: Any) -> StartFlowOptions:
    return StartFlowOptions(**options).with_attribute(token, FIRST)


def _traces(folder: Path, secret: str) -> list[str]:
    """Files that hold the text."""
    found = (path for path in folder.glob("engine.db*") if secret.encode() in path.read_bytes())
    return sorted(path.name for path in found)


def _tables_with(path: Path, secret: str) -> set[str]:
    connection = sqlite3.connect(path)
    names = [
        n for (n,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    ]
    return {
        name
        for name in names
        for row in connection.execute(f"SELECT * FROM {name}")
        if any(isinstance(value, bytes) and secret.encode() in value for value in row)
    }


async def _until_no_trace(app: App, folder: Path, secret: str) -> None:
    """The engine removes what is in its log when it has nothing to do."""
    async with asyncio.timeout(30):
        while _traces(folder, secret):
            await app.client.health_check()


async def _history(app: App, flow_id: str) -> bytes:
    run_id = (await app.client.describe_flow(flow_id)).run_id
    async with grpc.aio.insecure_channel(app.address) as channel:
        stub: Any = dex_pb2_grpc.FlowServiceStub(channel)
        request = pb.GetHistoryEventsRequest(flow_id=flow_id, run_id=run_id)
        return bytes((await stub.GetHistoryEvents(request)).SerializeToString())


async def test_values_are_used_kept_and_removed(tmp_path: Path) -> None:
    flow, data = Keeper(), tmp_path / "engine.db"
    async with serve(tmp_path, flow) as app:
        await app.client.start_flow(flow, "f", "wait", _with_token())
        assert await app.call(flow.length, "f") == len(FIRST)
    assert _tables_with(data, FIRST) == {"secrets"}
    async with serve(tmp_path, flow) as app:  # it is kept over a start
        assert await app.call(flow.length, "f") == len(FIRST)
        await app.call(flow.renew, "f")
        await _until_no_trace(app, tmp_path, FIRST)  # also while the engine runs
        assert await app.call(flow.length, "f") == len(SECOND)
        history = await _history(app, "f")
        assert b"visible" in history
        assert SECOND.encode() not in history
    assert _tables_with(data, SECOND) == {"secrets"}
    assert (await command("check", data)).code == 0
    async with serve(tmp_path, flow) as app:
        await app.call(flow.drop, "f")
        await _until_no_trace(app, tmp_path, SECOND)
        assert await app.call(flow.length, "f") == 0
        await app.call(flow.push, "f")
        assert (await app.client.wait_for_flow("f", WAIT)).single_output(int) == 0
    assert not _traces(tmp_path, FIRST) and not _traces(tmp_path, SECOND)
    assert (await command("check", data)).code == 0


async def test_check_finds_a_value_without_its_run(tmp_path: Path) -> None:
    flow, data = Keeper(), tmp_path / "engine.db"
    async with serve(tmp_path, flow) as app:
        await app.client.start_flow(flow, "f", "wait", _with_token())
    connection = sqlite3.connect(data)
    connection.execute("DELETE FROM secrets")
    connection.commit()
    connection.close()
    assert "other hard-delete Attributes" in (await command("check", data)).out


async def test_retry_and_time_travel_go_on_with_what_is_there_now(tmp_path: Path) -> None:
    flow = Keeper()
    retry = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=2)
    async with serve(tmp_path, flow) as app:
        await app.client.start_flow(flow, "again", "fail once", _with_token(retry_policy=retry))
        assert (await app.client.wait_for_flow("again", WAIT)).single_output(int) == len(FIRST)
        assert flow.step.runs == 2
        await app.client.start_flow(flow, "back", "wait", _with_token())
        await app.call(flow.renew, "back")
        await app.client.time_travel("back", TimeTravelOptions(TimeTravelType.BEGINNING))
        assert await app.call(flow.length, "back") == len(SECOND)
    async with serve(tmp_path, flow) as app:
        assert await app.call(flow.length, "back") == len(SECOND)
        assert await app.call(flow.length, "again") == len(FIRST)  # a closed run
    assert (await command("check", tmp_path / "engine.db")).code == 0


class Ask(Step[None]):
    def __init__(self, child: Keeper) -> None:
        self.child = child

    async def wait_for(self, context: AsyncContext, input: None) -> Wait:
        options = SubFlowOptions().with_attribute(token, FIRST)
        return Wait.until(SubFlow.run(self.child, "wait", options))

    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        return force_complete(SubFlow.get_condition_results(context).single_output(int))


class Parent(Flow[None]):
    def __init__(self, child: Keeper) -> None:
        self.step = Ask(child)

    def get_steps(self) -> StepList[None]:
        return StepList.start_step(self.step)


async def test_subflow_gets_one(tmp_path: Path) -> None:
    child = Keeper()
    parent = Parent(child)
    async with serve(tmp_path, parent, child) as app:
        await app.client.start_flow(parent, "p", None)
        async with asyncio.timeout(30):
            while not _tables_with(tmp_path / "engine.db", FIRST):
                await app.client.health_check()
    assert _tables_with(tmp_path / "engine.db", FIRST) == {"secrets"}
    async with serve(tmp_path, parent, child) as app:
        await app.call(child.push, "SubFlow:p-Ask-1-0")
        assert (await app.client.wait_for_flow("p", WAIT)).single_output(int) == len(FIRST)


async def test_kind_of_an_attribute_does_not_change(tmp_path: Path) -> None:
    flow = Keeper()
    async with serve(tmp_path, flow) as app:
        await app.client.start_flow(flow, "f", "wait", _with_token().with_attribute(plain, "text"))
        async with grpc.aio.insecure_channel(app.address) as channel:
            stub: Any = dex_pb2_grpc.FlowServiceStub(channel)
            for key, flag in (("token", False), ("plain", True)):
                write = pb.AttributeWrite(
                    key=key, value=pb.Value(string_value="x"), is_hard_delete_on_null=flag
                )
                request = pb.SetAttributesRequest(flow_id="f", request_id=key, attributes=[write])
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.SetAttributes(request)
                assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert f"Attribute '{key}'" in (caught.value.details() or "")
