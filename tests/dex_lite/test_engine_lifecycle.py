"""Start delay, timeout and retry of whole Flows through the real SDK, with engines that start again in the middle."""

# mypy: disable-error-code="override"
# The SDK types handlers as synchronous; it takes coroutines too.

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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
    Flow,
    FlowErrorType,
    FlowNotActiveOrNotFoundError,
    FlowResult,
    FlowStatus,
    FlowTimeoutHandlerOptions,
    FlowTimeoutPolicy,
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
    Wait,
    dead_end,
    force_complete,
    force_fail,
    go_to,
    graceful_complete,
    rpc,
)
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc

import dex_lite
from dex_lite._options import EngineOptions
from dex_lite_samples import App, serve, serve_sync, shift_clock
from support.cli import command

note = Attribute("note", str)
never = Channel("never", str)
HOUR = timedelta(hours=1)
ONCE = RetryPolicy(maximum_attempts=1)


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


async def _summary(app: App, flow_id: str, run_id: str = "") -> pb.GetFlowSummaryResponse:
    async with _stub(app) as stub:
        summary: pb.GetFlowSummaryResponse = await stub.GetFlowSummary(
            pb.GetFlowSummaryRequest(flow_id=flow_id, run_id=run_id)
        )
        return summary


async def _events(app: App, flow_id: str, run_id: str) -> list[pb.FlowHistoryEvent]:
    async with _stub(app) as stub:
        response = await stub.GetHistoryEvents(
            pb.GetHistoryEventsRequest(flow_id=flow_id, run_id=run_id)
        )
        return list(response.events)


# Start delay


class Say(Step[str]):
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        return graceful_complete(f"{input} {note.get(context)}")


class Later(Flow[str]):
    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Say())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(note)

    @rpc
    async def keep(self, context: Context, text: str) -> RPCResult[str]:
        before = note.get(context)
        note.set(context, text)
        return RPCResult(before or "")


async def test_delayed_start_outlives_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Later()
    options = StartFlowOptions(start_delay=HOUR).with_attribute(note, "first")
    async with serve(tmp_path, flow) as app:
        await app.client.start_flow(flow, "f", "hello", options)
        state = await _state(app, "f")
        assert [step.step_type for step in state.queued_steps] == ["Say"]
        assert await app.call(flow.keep, "f", "during the delay") == "first"
    async with serve(tmp_path, flow) as app:  # not due yet
        assert [s.step_type for s in (await _state(app, "f")).queued_steps] == ["Say"]
    shift_clock(monkeypatch, 3_600)
    async with serve(tmp_path, flow) as app:
        result = await app.client.wait_for_flow("f")
    assert result.single_output(str) == "hello during the delay"


async def test_short_delay_passes(tmp_path: Path) -> None:
    flow = Later()
    async with serve(tmp_path, flow) as app:
        options = StartFlowOptions(start_delay=timedelta(seconds=1))
        await app.client.start_flow(flow, "f", "hello", options)
        result = await app.client.wait_for_flow("f")
        summary = await _summary(app, "f")
    assert result.single_output(str) == "hello None"
    taken = summary.close_time.ToDatetime() - summary.start_time.ToDatetime()
    assert taken >= timedelta(seconds=1)


# Timeout


class Wait4Ever(Step[None]):
    async def wait_for(self, context: AsyncContext, input: None) -> Wait:
        return Wait.until(never.for_one())

    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        return dead_end()


class Slow(Flow[None]):
    """Waits for what never comes."""

    def get_steps(self) -> StepList[None]:
        return StepList.start_step(Wait4Ever())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(never)


@pytest.mark.parametrize(
    "policy, status",
    [(FlowTimeoutPolicy.FAIL, FlowStatus.FAILED), (FlowTimeoutPolicy.CANCEL, FlowStatus.CANCELED)],
)
async def test_timeout_fails_or_cancels(
    tmp_path: Path, policy: FlowTimeoutPolicy, status: FlowStatus
) -> None:
    flow = Slow()
    async with serve(tmp_path, flow) as app:
        options = StartFlowOptions(timeout=timedelta(seconds=1), timeout_policy=policy)
        run_id = await app.client.start_flow(flow, "f", None, options)
        state = await _state(app, "f")
        shown = [step.step_type for step in state.active_step_executions]
        shown += [step.step_type for step in state.queued_steps]
        assert shown == ["Wait4Ever"]
        result = await app.client.wait_for_flow("f")
        assert result.status is status
        if policy is FlowTimeoutPolicy.FAIL:
            assert result.error_type is FlowErrorType.FLOW_TIMEOUT
            assert result.error_message == "Flow timed out after 1 seconds"
        started = (await _events(app, "f", run_id))[0].flow_started_or_continued
        assert started.flow_timeout.seconds == 1


async def test_timeout_that_passed_while_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Slow()
    async with serve(tmp_path, flow) as app:
        await app.client.start_flow(flow, "f", None, StartFlowOptions(timeout=HOUR))
    shift_clock(monkeypatch, 3_600)
    async with serve(tmp_path, flow) as app:
        result = await app.client.wait_for_flow("f")
    assert result.error_type is FlowErrorType.FLOW_TIMEOUT


class Clean(Step[None]):
    """Goes where an exhausted handler leads to."""

    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        error = context.recovery_error
        return force_complete(f"cleaned after {error.detail if error else 'nothing'}")


class Handled(Flow[str]):
    """Waits for ever; its timeout does what its input says."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()
        self.attempts: list[int] = []

    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Hang()).other_steps(Clean())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(note, never)

    async def handle_timeout(self, context: AsyncContext) -> StepDecision:
        self.attempts.append(context.attempt)
        self.has_begun.set()
        what = note.get(context)
        if what == "complete":
            return force_complete(f"timed out as {context.step_execution_id}")
        if what == "step":
            return go_to(Clean, None)
        if what == "hang" and context.attempt == 1:
            await asyncio.Event().wait()
        if what == "fail":
            raise RuntimeError("no way")
        return force_complete("again")


class Hang(Step[str]):
    async def wait_for(self, context: AsyncContext, input: str) -> Wait:
        note.set(context, input)
        return Wait.until(never.for_one())

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        return dead_end()


SOON = StartFlowOptions(
    timeout=timedelta(seconds=1),
    timeout_handler_options=FlowTimeoutHandlerOptions(
        retry=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=2)
    ).on_failure_proceed_to(Clean),
)


@pytest.mark.parametrize(
    "what, output",
    [
        ("complete", "timed out as sys:timeout_handler-1"),
        ("step", "cleaned after nothing"),
        ("fail", "cleaned after no way"),
    ],
)
async def test_timeout_handler_decides(tmp_path: Path, what: str, output: str) -> None:
    flow = Handled()
    async with serve(tmp_path, flow) as app:
        run_id = await app.client.start_flow(flow, "f", what, SOON)
        state = await _state(app, "f")
        assert "sys:timeout_handler-1" in [
            step.step_execution_id for step in state.active_step_executions
        ]
        assert (await app.client.wait_for_flow("f")).single_output(str) == output
        events = await _events(app, "f", run_id)
    assert flow.attempts == ([1, 2] if what == "fail" else [1])
    handled = "step_execute_failed" if what == "fail" else "step_execute_completed"
    shown = [getattr(event, handled).context.step_execution_id for event in events]
    assert "sys:timeout_handler-1" in shown


async def test_timeout_handler_is_lost_with_the_engine_and_runs_again(tmp_path: Path) -> None:
    flow, path = Handled(), tmp_path / "engine.db"
    async with dex_lite.open_engine(path, options=EngineOptions(drain_s=0.0)) as engine:
        app = App(engine.address, tmp_path, [flow])
        await app.start_worker()
        await app.client.start_flow(flow, "f", "hang", SOON)
        await flow.has_begun.wait()
        port = int(engine.address.rpartition(":")[2])
    async with dex_lite.open_engine(path, port=port):
        # The same Worker comes back by itself.
        await app.connected()
        assert (await app.client.wait_for_flow("f")).single_output(str) == "again"
        await app.close()
    assert flow.attempts == [1, 2]


class End(Step[None]):
    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        return graceful_complete("done")


class Quick(Flow[None]):
    def get_steps(self) -> StepList[None]:
        return StepList.start_step(End())


async def test_timeout_keeps_no_completion_open(tmp_path: Path) -> None:
    flow = Quick()
    async with serve(tmp_path, flow) as app:
        await app.client.start_flow(flow, "f", None, StartFlowOptions(timeout=HOUR))
        assert (await app.client.wait_for_flow("f")).single_output(str) == "done"


# Retry


class Try(Step[int]):
    """Fails until the run of the given number."""

    def __init__(self) -> None:
        self.seen: list[str | None] = []  # one for each run
        self.has_failed = asyncio.Event()

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=ONCE)

    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        self.seen.append(note.get(context))
        note.set(context, "changed")
        if len(self.seen) >= input:
            return force_complete(f"{len(self.seen)} {context.run_id}")
        self.has_failed.set()
        if len(self.seen) == 1:
            raise RuntimeError("not yet")
        return force_fail("not yet either")


class Retried(Flow[int]):
    def __init__(self) -> None:
        self.step = Try()

    def get_steps(self) -> StepList[int]:
        return StepList.start_step(self.step)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(note, never)


def _again(attempts: int, first: timedelta = timedelta(seconds=1)) -> StartFlowOptions:
    policy = RetryPolicy(initial_interval=first, maximum_interval=first, maximum_attempts=attempts)
    return StartFlowOptions(retry_policy=policy).with_attribute(note, "first")


async def test_failed_flow_runs_again_and_waiters_see_the_last_result(tmp_path: Path) -> None:
    flow = Retried()
    async with serve(tmp_path, flow) as app:
        run_id = await app.client.start_flow(flow, "f", 3, _again(5))
        result = await app.client.wait_for_flow("f")
        last = await _summary(app, "f")
        first = await _summary(app, "f", run_id)
        async with _stub(app) as stub:
            by_first_run: pb.FlowResult = await stub.WaitForFlow(
                pb.WaitForFlowRequest(flow_id="f", run_id=run_id, needs_results=True)
            )
        events = await _events(app, "f", last.flow_execution_id.run_id)
    data = tmp_path / "engine.db"
    assert (await command("check", data)).code == 0
    connection = sqlite3.connect(data)
    for statement in ("DELETE FROM facts WHERE id >> 32 = 3", "DELETE FROM runs WHERE id = 3"):
        assert connection.execute(statement).rowcount
    connection.commit()
    connection.close()
    assert f"followed by run {last.flow_execution_id.run_id}" in (await command("check", data)).out
    # Each run begins with what the Flow was started with.
    assert flow.step.seen == ["first"] * 3
    assert result.single_output(str) == f"3 {last.flow_execution_id.run_id}"
    assert by_first_run.flow_status == pb.FLOW_STATUS_COMPLETED
    assert (first.flow_status, first.run_attempt) == (pb.FLOW_STATUS_FAILED, 1)
    assert (last.run_attempt, last.first_run_id) == (3, run_id)
    assert {event.run_attempt for event in events} == {3}


async def test_flow_retries_end_with_their_number(tmp_path: Path) -> None:
    flow = Retried()
    async with serve(tmp_path, flow) as app:
        await app.client.start_flow(flow, "f", 9, _again(2))
        result = await app.client.wait_for_flow("f")
        assert (await _summary(app, "f")).run_attempt == 2
    assert result.error_type is FlowErrorType.STEP_DECISION_FAILED
    assert result.error_message == "not yet either"


async def test_flow_retry_waits_through_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Retried()
    async with serve(tmp_path, flow) as app:
        run_id = await app.client.start_flow(flow, "f", 2, _again(2, HOUR))
        await flow.step.has_failed.wait()
        while (await _summary(app, "f")).run_attempt == 1:
            pass
        assert (await _summary(app, "f", run_id)).flow_status == pb.FLOW_STATUS_FAILED
        assert [step.step_type for step in (await _state(app, "f")).queued_steps] == ["Try"]
    shift_clock(monkeypatch, 3_600)
    async with serve(tmp_path, flow) as app:
        assert (await app.client.wait_for_flow("f")).single_output(str).startswith("2 ")
        # The runs before are still there to be read.
        assert (await _summary(app, "f", run_id)).flow_status == pb.FLOW_STATUS_FAILED
        assert (await _events(app, "f", run_id))[-1].flow_closed.error_message == "not yet"


async def test_timed_out_flow_is_tried_again_but_a_stopped_one_is_not(tmp_path: Path) -> None:
    flow = Slow()
    policy = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=2)
    async with serve(tmp_path, flow) as app:
        late = StartFlowOptions(timeout=timedelta(seconds=1), retry_policy=policy)
        await app.client.start_flow(flow, "late", None, late)
        await app.client.start_flow(flow, "stopped", None, StartFlowOptions(retry_policy=policy))
        await app.client.stop_flow("stopped", StopFlowOptions(StopType.FAIL, "enough"))
        stopped = await app.client.wait_for_flow("stopped")
        with pytest.raises(FlowNotActiveOrNotFoundError):
            await app.client.stop_flow("stopped")
        late_result = await app.client.wait_for_flow("late")
        assert (await _summary(app, "late")).run_attempt == 2
        assert (await _summary(app, "stopped")).run_attempt == 1
    assert stopped.error_message == "enough"
    assert late_result.error_type is FlowErrorType.FLOW_TIMEOUT


# The synchronous Worker and Client


class SyncTry(Step[None]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=ONCE)

    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.until(never.for_one())

    def execute(self, context: Context, input: None) -> StepDecision:
        return dead_end()


class SyncFlow(Flow[None]):
    """Its timeout fails the first run and completes the second."""

    def __init__(self) -> None:
        self.runs: list[str] = []

    def get_steps(self) -> StepList[None]:
        return StepList.start_step(SyncTry())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(never)

    def handle_timeout(self, context: Context) -> StepDecision:
        self.runs.append(context.run_id)
        if len(self.runs) == 1:
            return force_fail("once more")
        return force_complete("second run")


async def test_sync_worker_and_client(tmp_path: Path) -> None:
    flow = SyncFlow()
    second = timedelta(seconds=1)
    options = StartFlowOptions(
        timeout=second,
        start_delay=second,
        retry_policy=RetryPolicy(initial_interval=second, maximum_attempts=2),
    )
    async with serve_sync(tmp_path, flow) as app:
        await asyncio.to_thread(app.client.start_flow, flow, "f", None, options)
        result: FlowResult = await asyncio.to_thread(app.client.wait_for_flow, "f")
    assert result.single_output(str) == "second run"
