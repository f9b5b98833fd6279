"""SubFlows through the real SDK: results, failures, reuse of their ids, and starts of the engine in between."""

# mypy: disable-error-code="override"
# The SDK types handlers as synchronous; it takes coroutines too.

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from dex import (
    AsyncContext,
    Attribute,
    Channel,
    Context,
    DexServiceError,
    Flow,
    FlowNotFoundError,
    FlowResult,
    FlowStatus,
    IdReusePolicy,
    PersistenceSchema,
    RetryPolicy,
    RPCResult,
    StartFlowOptions,
    Step,
    StepDecision,
    StepList,
    StepOptions,
    StopFlowOptions,
    StopType,
    SubFlow,
    SubFlowOptions,
    SubFlowReusePolicy,
    Timer,
    Wait,
    force_complete,
    force_fail,
    rpc,
)
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc

from dex_lite._meter import Meter
from dex_lite_samples import App, serve, serve_sync
from support.cli import command

WAIT = timedelta(seconds=30)
go = Channel("go", str)
label = Attribute("label", str)


@dataclass
class Order:
    """What a child does, and how the parent asks for it."""

    does: str = "complete"  # or "fail", "wait", "flaky"
    reuse: str = "restart_if_previous_exits_abnormally"
    race: bool = False  # an hour, or the child
    children: int = 1
    retry: bool = False


class Work(Step[str]):
    def __init__(self) -> None:
        self.runs: list[str] = []

    async def wait_for(self, context: AsyncContext, input: str) -> Wait:
        if input == "wait":
            return Wait.until(go.for_one())
        return Wait.skip_immediately()

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        self.runs.append(context.run_id)
        if input == "fail" or (input == "flaky" and len(self.runs) == 1):
            return force_fail("the child failed")
        return force_complete(f"{label.get(context)} {len(self.runs)}")


class Child(Flow[str]):
    def __init__(self) -> None:
        self.step = Work()

    def get_steps(self) -> StepList[str]:
        return StepList.start_step(self.step)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(go, label)

    @rpc
    async def push(self, context: Context) -> RPCResult[int]:
        go.publish(context, "go")
        return RPCResult(1)


class Ask(Step[Order]):
    """Runs children and tells what became of them."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.policy: RetryPolicy | None = None

    def get_step_options(self) -> StepOptions:
        return StepOptions(wait_for_retry=self.policy)

    async def wait_for(self, context: AsyncContext, input: Order) -> Wait:
        options = SubFlowOptions(
            reuse_policy=SubFlowReusePolicy(input.reuse),
            retry_policy=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=2)
            if input.retry
            else None,
        ).with_attribute(label, "ran")
        children = [SubFlow.run(self.child, input.does, options) for _ in range(input.children)]
        if input.race:
            return Wait.any_of(Timer.by_duration(timedelta(seconds=1)), *children)
        return Wait.all_of(*children)

    async def execute(self, context: AsyncContext, input: Order) -> StepDecision:
        told = []
        for index in range(input.children):
            result = SubFlow.get_condition_results(context, index)
            output = result.single_output(str) if result.completions else result.error_message
            told.append(f"{SubFlow.get_flow_id(context, index)} {result.status.value} {output}")
        return force_complete("; ".join(told))


class Parent(Flow[Order]):
    def __init__(self, child: Child) -> None:
        self.step = Ask(child)

    def get_steps(self) -> StepList[Order]:
        return StepList.start_step(self.step)


def _flows() -> tuple[Parent, Child]:
    child = Child()
    return Parent(child), child


@asynccontextmanager
async def _stub(app: App) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(app.address) as channel:
        yield dex_pb2_grpc.FlowServiceStub(channel)


async def _state(app: App, flow_id: str) -> pb.GetFlowStateResponse:
    async with _stub(app) as stub:
        state: pb.GetFlowStateResponse = await stub.GetFlowState(
            pb.GetFlowStateRequest(flow_id=flow_id)
        )
        return state


async def _until_started(app: App, flow_id: str) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await app.client.describe_flow(flow_id)
                return
            except FlowNotFoundError:
                pass


async def _ended(app: App, flow_id: str) -> str:
    result = await app.client.wait_for_flow(flow_id, WAIT)
    assert result.status is FlowStatus.COMPLETED, (result.status, result.error_message)
    return result.single_output(str)


@pytest.mark.parametrize(
    "order, told",
    [
        (Order(), ["SubFlow:p-Ask-1-0 completed ran 1"]),
        (Order("fail"), ["SubFlow:p-Ask-1-0 failed the child failed"]),
        (Order("flaky", retry=True), ["SubFlow:p-Ask-1-0 completed ran 2"]),
        (Order(race=True), ["SubFlow:p-Ask-1-0 completed ran 1"]),
        (Order("wait", race=True), ["SubFlow:p-Ask-1-0 running None"]),
    ],
    ids=["completed", "failed", "retried", "won the race", "lost the race"],
)
async def test_parent_gets_the_childs_result(tmp_path: Path, order: Order, told: list[str]) -> None:
    parent, child = _flows()
    async with serve(tmp_path, parent, child) as app:
        await app.client.start_flow(parent, "p", order)
        assert (await _ended(app, "p")).split("; ") == told
        if order.does == "wait":  # who lost goes on, until somebody stops it
            assert (await app.client.describe_flow("SubFlow:p-Ask-1-0")).status.value == "running"
            await app.client.stop_flow("SubFlow:p-Ask-1-0")
            stopped = await app.client.wait_for_flow("SubFlow:p-Ask-1-0")
            assert stopped.status is FlowStatus.CANCELED
    assert (await command("check", tmp_path / "engine.db")).code == 0


@pytest.mark.parametrize("how", [StopType.CANCEL, StopType.TERMINATE, StopType.FAIL])
async def test_stopped_child_is_told_to_the_parent_which_shows_what_it_has(
    tmp_path: Path, how: StopType
) -> None:
    parent, child = _flows()
    status = {StopType.CANCEL: "canceled", StopType.TERMINATE: "terminated"}.get(how, "failed")
    async with serve(tmp_path, parent, child) as app:
        await app.client.start_flow(parent, "p", Order("wait", children=2))
        first, second = "SubFlow:p-Ask-1-0", "SubFlow:p-Ask-1-1"
        await _until_started(app, second)
        await app.client.stop_flow(first, StopFlowOptions(how, "enough"))
        (step,) = (await _state(app, "p")).active_step_executions
        done = step.completed_conditions.completed_sub_flow_results
        assert list(done) == [0]
        assert len(step.waiting_condition.sub_flow_conditions) == 2
    async with serve(tmp_path, parent, child) as app:
        await app.call(child.push, second)
        reason = "enough" if how is StopType.FAIL else None
        assert (await _ended(app, "p")).split("; ") == [
            f"{first} {status} {reason}",
            f"{second} completed ran 1",
        ]


AGAIN = StartFlowOptions(id_reuse_policy=IdReusePolicy.ALLOW_TERMINATE_IF_RUNNING)
ATTACH, RETRY, RESTART = "attach", "restart_if_previous_exits_abnormally", "always_restart"


@pytest.mark.parametrize(
    "before, reuse, runs, told",
    [
        ("complete", ATTACH, 1, "completed ran 1"),
        ("complete", RETRY, 1, "completed ran 1"),
        ("complete", RESTART, 2, "completed ran 2"),
        ("fail", ATTACH, 1, "failed the child failed"),
        ("fail", RETRY, 2, "completed ran 2"),
        ("fail", RESTART, 2, "completed ran 2"),
    ],
)
async def test_reuse_of_an_ended_child(
    tmp_path: Path, before: str, reuse: str, runs: int, told: str
) -> None:
    """A second run of the parent finds the child of the first one."""
    parent, child = _flows()
    async with serve(tmp_path, parent, child) as app:
        await app.client.start_flow(parent, "p", Order(before))
        await _ended(app, "p")
    async with serve(tmp_path, parent, child) as app:  # so the child has to be read from the file
        await app.client.start_flow(parent, "p", Order(reuse=reuse), AGAIN)
        assert await _ended(app, "p") == f"SubFlow:p-Ask-1-0 {told}"
    assert len(child.step.runs) == runs
    assert (await command("check", tmp_path / "engine.db")).code == 0


@pytest.mark.parametrize("reuse", [ATTACH, RETRY, RESTART])
async def test_reuse_of_a_running_child(tmp_path: Path, reuse: str) -> None:
    parent, child = _flows()
    flow_id = "SubFlow:p-Ask-1-0"
    async with serve(tmp_path, parent, child) as app:
        await app.client.start_flow(parent, "p", Order("wait"))
        await _until_started(app, flow_id)
        first = (await app.client.describe_flow(flow_id)).run_id
        await app.client.start_flow(parent, "p", Order("wait", reuse=reuse), AGAIN)
        # It waits for the child only when its WaitFor is through.
        while not (await _state(app, "p")).active_step_executions[0].waiting_condition.ByteSize():
            pass
        second = (await app.client.describe_flow(flow_id)).run_id
        assert (second == first) is (reuse != RESTART)
    async with serve(tmp_path, parent, child) as app:
        await app.call(child.push, flow_id)
        assert await _ended(app, "p") == f"{flow_id} completed ran 1"
        assert child.step.runs == [second]


async def test_child_id_that_is_too_long_fails_the_wait(tmp_path: Path) -> None:
    parent, child = _flows()
    parent.step.policy = RetryPolicy(maximum_attempts=1)
    flow_id = "p" * 250
    async with serve(tmp_path, parent, child) as app:
        await app.client.start_flow(parent, flow_id, Order())
        result = await app.client.wait_for_flow(flow_id, WAIT)
        assert "at most 255" in (result.error_message or "")
        # And nobody but the engine makes such ids.
        with pytest.raises(DexServiceError, match="must not contain ':'"):
            await app.client.start_flow(parent, "SubFlow:p-Ask-1-0", Order())


async def test_engine_starts_again_at_every_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is on disk after each commit is a file from which the Flow comes to the same end."""
    live, copies = tmp_path / "live", tmp_path / "copies"
    for folder in (live, copies):
        folder.mkdir()
    count = 0

    def committed(meter: Meter, seconds: float, writes: int) -> None:  # in the writer thread
        nonlocal count
        count += 1
        target = copies / str(count)
        target.mkdir()
        for suffix in ("", "-wal"):
            if (live / f"engine.db{suffix}").exists():
                shutil.copy(live / f"engine.db{suffix}", target / f"engine.db{suffix}")

    order = Order("flaky", children=2, retry=True)
    with monkeypatch.context() as patch:
        patch.setattr(Meter, "committed", committed)
        parent, child = _flows()
        async with serve(live, parent, child) as app:
            await app.client.start_flow(parent, "p", order)
            told = await _ended(app, "p")
    assert told.count("completed") == 2
    assert count > 5
    for number in range(1, count + 1):
        folder = copies / str(number)
        parent, child = _flows()
        child.step.runs.append("")  # no run of it is the flaky one any more
        async with serve(folder, parent, child) as app:
            assert (await _ended(app, "p")).count("completed") == 2, f"commit {number} of {count}"
        assert (await command("check", folder / "engine.db")).code == 0


async def test_check_finds_a_wait_that_nobody_ends(tmp_path: Path) -> None:
    parent, child = _flows()
    async with serve(tmp_path, parent, child) as app:
        await app.client.start_flow(parent, "p", Order("wait"))
        await _until_started(app, "SubFlow:p-Ask-1-0")
    data = tmp_path / "engine.db"
    assert (await command("check", data)).code == 0
    connection = sqlite3.connect(data)
    for statement in ("DELETE FROM facts WHERE id >> 32 = 2", "DELETE FROM runs WHERE id = 2"):
        assert connection.execute(statement).rowcount
    connection.commit()
    connection.close()
    done = await command("check", data)
    assert done.code == 1
    assert "waits for SubFlow 'SubFlow:p-Ask-1-0', which does not know of it" in done.out


class SyncWork(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.skip_immediately()

    def execute(self, context: Context, input: int) -> StepDecision:
        return force_complete(input + 1)


class SyncChild(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(SyncWork())


class SyncAsk(Step[int]):
    def __init__(self, child: SyncChild) -> None:
        self.child = child

    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.all_of(*(SubFlow.run(self.child, input + n) for n in range(3)))

    def execute(self, context: Context, input: int) -> StepDecision:
        results = (SubFlow.get_condition_results(context, n) for n in range(3))
        return force_complete(sum(result.single_output(int) for result in results))


class SyncParent(Flow[int]):
    def __init__(self, child: SyncChild) -> None:
        self.step = SyncAsk(child)

    def get_steps(self) -> StepList[int]:
        return StepList.start_step(self.step)


async def test_sync_worker(tmp_path: Path) -> None:
    child = SyncChild()
    parent = SyncParent(child)
    async with serve_sync(tmp_path, parent, child) as app:
        await asyncio.to_thread(app.client.start_flow, parent, "p", 10)
        result: FlowResult = await asyncio.to_thread(app.client.wait_for_flow, "p", WAIT)
    assert result.single_output(int) == 36
