"""Hard-delete Attributes through the real SDK: used like others, and no byte of them left behind."""

# mypy: disable-error-code="override"
# The SDK types handlers as synchronous; it takes coroutines too.

from __future__ import annotations

import asyncio
import random
import re
import shutil
import sqlite3
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from dex import (
    AsyncContext,
    Attribute,
    AttributeIndex,
    AttributeMap,
    Channel,
    Context,
    Flow,
    IdReusePolicy,
    IndexType,
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

from dex_lite import EngineOptions, _journal, _schema
from dex_lite._journal_sql import BatchWriter
from dex_lite._records import PutRun, PutSecret, RunRow
from dex_lite_samples import App, serve
from support.cli import command
from support.old_files import write_old_file

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


class Indexing(Flow[None]):
    """Its index has the name of the other Flow's hard-delete Attribute."""

    def get_persistence_schema(self) -> PersistenceSchema:
        index = AttributeIndex(IndexType.KEYWORD)
        return PersistenceSchema.of(Attribute("token", str, index))


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
    found = {
        name
        for name in names
        for row in connection.execute(f"SELECT * FROM {name}")
        if any(isinstance(value, bytes) and secret.encode() in value for value in row)
    }
    connection.close()
    return found


def _count(path: Path, table: str) -> int:
    connection = sqlite3.connect(path)
    (count,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    connection.close()
    return int(count)


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
    assert "hard-delete Attribute 'token' has no value" in (await command("check", data)).out


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


async def test_a_flow_has_its_values_once(tmp_path: Path) -> None:
    """What the newest run deletes is gone, also from the runs before it."""
    flow = Keeper()
    beginning = TimeTravelOptions(TimeTravelType.BEGINNING, skip_writes_reapply=True)
    async with serve(tmp_path, flow) as app:
        await app.client.start_flow(flow, "f", "wait", _with_token())
        first = (await app.client.describe_flow("f")).run_id
        await app.client.time_travel("f", beginning)
        assert await app.call(flow.length, "f") == len(FIRST)
        await app.call(flow.push, "f")
        assert (await app.client.wait_for_flow("f", WAIT)).single_output(int) == len(FIRST)
        # Of a closed run, and then of the one before it: the values are those of the newest.
        await app.client.time_travel("f", beginning)
        await app.call(flow.drop, "f")
        async with grpc.aio.insecure_channel(app.address) as channel:
            stub: Any = dex_pb2_grpc.FlowServiceStub(channel)
            back = pb.FLOW_RESET_TYPE_BEGINNING
            await stub.ResetFlow(
                pb.ResetFlowRequest(
                    flow_id="f", run_id=first, reset_type=back, skip_writes_reapply=True
                )
            )
        assert await app.call(flow.length, "f") == 0
        await _until_no_trace(app, tmp_path, FIRST)
        await app.client.stop_flow("f")
        # A new Flow under the ID has nothing of the one before.
        again = IdReusePolicy.ALLOW_IF_NOT_RUNNING
        await app.client.start_flow(flow, "f", "wait", _with_token(id_reuse_policy=again))
        await app.client.stop_flow("f")
        options = StartFlowOptions(id_reuse_policy=again)
        await app.client.start_flow(flow, "f", "wait", options)
        assert await app.call(flow.length, "f") == 0
        await _until_no_trace(app, tmp_path, FIRST)
    assert (await command("check", tmp_path / "engine.db")).code == 0


async def test_snapshots_hold_no_value(tmp_path: Path) -> None:
    flow, data = Keeper(), tmp_path / "engine.db"
    async with serve(tmp_path, flow) as app:
        await app.client.start_flow(flow, "f", "wait", _with_token())
        for _ in range(150):
            await app.call(flow.renew, "f")
    assert _count(data, "snapshots") == 1
    assert _tables_with(data, SECOND) == {"secrets"}
    async with serve(tmp_path, flow) as app:
        assert await app.call(flow.length, "f") == len(SECOND)
    assert (await command("check", data)).code == 0


async def test_an_index_of_that_name_holds_no_value(tmp_path: Path) -> None:
    flow = Keeper()
    async with serve(tmp_path, flow, Indexing()) as app:
        await app.client.start_flow(flow, "f", "wait", _with_token())
        found = await app.client.search_flows(f"token = '{FIRST}'", 10)
        assert not found.flows
    assert _tables_with(tmp_path / "engine.db", FIRST) == {"secrets"}
    assert (await command("check", tmp_path / "engine.db")).code == 0


async def test_retention_removes_values(tmp_path: Path) -> None:
    flow = Keeper()
    async with serve(tmp_path, flow, options=EngineOptions(retention_s=0.2)) as app:
        await app.client.start_flow(flow, "f", "wait", _with_token())
        assert _traces(tmp_path, FIRST)
        await app.client.stop_flow("f")
        await _until_no_trace(app, tmp_path, FIRST)


async def test_backup_holds_the_values_of_its_moment(tmp_path: Path) -> None:
    flow, later = Keeper(), tmp_path / "later"
    later.mkdir()
    async with serve(tmp_path, flow) as app:
        await app.client.start_flow(flow, "f", "wait", _with_token())
        await app.call(flow.renew, "f")
        done = await command("backup", later / "engine.db", "--data", tmp_path / "engine.db")
        assert done.code == 0, done.err
    assert not _traces(later, FIRST)
    assert _tables_with(later / "engine.db", SECOND) == {"secrets"}
    async with serve(later, flow) as app:
        assert await app.call(flow.length, "f") == len(SECOND)


async def test_the_log_of_a_killed_engine_is_cut_when_the_next_one_starts(tmp_path: Path) -> None:
    flow, killed = Keeper(), tmp_path / "killed"
    async with serve(tmp_path, flow) as app:
        await app.client.start_flow(flow, "f", "wait", _with_token())
        # A reader keeps the log from being cut, as it is in a file of a process that ends now.
        reader = sqlite3.connect(tmp_path / "engine.db", isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM secrets").fetchall()
        await app.call(flow.drop, "f")
        killed.mkdir()
        for name in ("engine.db", "engine.db-wal"):
            shutil.copyfile(tmp_path / name, killed / name)
        reader.close()
        await _until_no_trace(app, tmp_path, FIRST)
    assert _traces(killed, FIRST)
    async with serve(killed, flow) as app:
        await _until_no_trace(app, killed, FIRST)


@pytest.mark.parametrize("is_cut", [True, False])
async def test_the_log_of_an_engine_that_is_never_idle_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cut: bool
) -> None:
    """After some seconds of work, here at once; and nothing else would have done it."""
    monkeypatch.setattr(_journal, "_IDLE_BEFORE_CHECKPOINT_S", 3_600.0)
    monkeypatch.setattr(_journal, "_LONGEST_IN_LOG_S", 0.0 if is_cut else 3_600.0)
    flow = Keeper()
    async with serve(tmp_path, flow) as app:
        await app.client.start_flow(flow, "f", "wait", _with_token())
        await app.call(flow.drop, "f")
        for _ in range(3):  # it works on
            await app.client.start_flow(flow, uuid.uuid4().hex, "wait")
        if is_cut:
            await _until_no_trace(app, tmp_path, FIRST)
        else:
            assert _traces(tmp_path, FIRST)
    assert not _traces(tmp_path, FIRST)


def test_no_row_leaves_a_copy_where_it_was(tmp_path: Path) -> None:
    """Rows move between pages when the table grows and shrinks."""
    path, pick = str(tmp_path / "engine.db"), random.Random(3)
    _schema.prepare(path)
    connection = _schema.open_writer(path, "normal", sqlite3.connect)
    writer = BatchWriter(connection)
    runs = [f"run-{number}" for number in range(60)]
    writer.commit([PutRun(RunRow(run, run, "T", 1, 1, "", run, 1, None)) for run in runs])
    kept: dict[tuple[str, str], bytes] = {}
    for number in range(2_000):
        place = pick.choice(runs), pick.choice("abcdef")
        kept.pop(place, None)
        value = b"<value %6d>" % number * pick.choice((1, 5, 20, 60, 300))
        if pick.random() < 0.6:
            kept[place] = value
        writer.commit([PutSecret(*place, kept.get(place))])
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    found = set(re.findall(rb"<value [ 0-9]{6}>", Path(path).read_bytes()))
    assert found == {value[:14] for value in kept.values()}
    connection.close()


@pytest.mark.parametrize("old", [1, 2])
async def test_a_file_of_an_older_format_takes_them(tmp_path: Path, old: int) -> None:
    flow, data = Keeper(), tmp_path / "engine.db"
    write_old_file(data, old)
    async with serve(tmp_path, flow) as app:
        await app.client.start_flow(flow, "f", "wait", _with_token())
        assert await app.call(flow.length, "f") == len(FIRST)
        await app.call(flow.drop, "f")
        await _until_no_trace(app, tmp_path, FIRST)
    connection = sqlite3.connect(data)
    assert connection.execute("PRAGMA user_version").fetchone() == (_schema.FORMAT,)
    connection.close()
    assert (await command("check", data)).code == 0


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
