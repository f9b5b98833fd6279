"""An engine that is closed or killed, and started again on its file."""

# mypy: disable-error-code="override"
# The SDK types handlers as synchronous; it takes coroutines too.

from __future__ import annotations

import asyncio
import signal
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
    FlowStatus,
    PersistenceSchema,
    RetryPolicy,
    RPCResult,
    Step,
    StepDecision,
    StepExecutionId,
    StepList,
    StepOptions,
    Timer,
    Wait,
    WaitForStepCompletionOptions,
    dead_end,
    force_complete,
    go_to_many,
    graceful_complete,
    rpc,
)
from dex import StepMovement as Movement
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc

import dex_lite
from dex_lite._options import EngineOptions
from dex_lite_samples import App, Chain, Mailbox, engine_process, serve, shift_clock

seen = Attribute("seen", str)
later = Channel("later", str)
A_WHILE = WaitForStepCompletionOptions(request_timeout=timedelta(seconds=30))
AT_ONCE = EngineOptions(drain_s=0.0)


async def test_waiting_flow_goes_on_with_its_attributes(tmp_path: Path) -> None:
    mailbox = Mailbox()
    async with serve(tmp_path, mailbox) as app:
        await app.client.start_flow(mailbox, "f", 0)
        for text in ("a", "b"):
            await app.call(mailbox.send, "f", text)
        await app.client.wait_for_step_completion("f", StepExecutionId("Listen", 2), A_WHILE)
        assert await app.call(mailbox.read, "f") == 2
    for round_ in (3, 4):
        async with serve(tmp_path, mailbox) as app:
            assert await app.call(mailbox.read, "f") == round_ - 1
            await app.call(mailbox.send, "f", "end" if round_ == 4 else "c")
            number = StepExecutionId("Listen", round_)
            await app.client.wait_for_step_completion("f", number, A_WHILE)
    async with serve(tmp_path, mailbox) as app:  # closed Flows answer too
        result = await app.client.wait_for_flow("f")
        assert (result.status, result.single_output(int)) == (FlowStatus.COMPLETED, 4)
        assert await app.call(mailbox.read, "f") == 4


class Sleep(Step[int]):
    async def wait_for(self, context: AsyncContext, input: int) -> Wait:
        return Wait.until(Timer.by_duration(timedelta(seconds=input)))

    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        return force_complete(list(later.results(context)) == [] and context.has_timer_fired())


class SleepFlow(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Sleep())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(seen, later)

    @rpc
    async def note(self, context: Context, text: str) -> RPCResult[int]:
        seen.set(context, text)
        later.publish(context, text)
        return RPCResult(later.size(context))


async def _state(address: str, flow_id: str) -> pb.GetFlowStateResponse:
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = dex_pb2_grpc.FlowServiceStub(channel)
        state: pb.GetFlowStateResponse = await stub.GetFlowState(
            pb.GetFlowStateRequest(flow_id=flow_id)
        )
        return state


async def _history(address: str, flow_id: str, run_id: str) -> list[bytes]:
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = dex_pb2_grpc.FlowServiceStub(channel)
        request = pb.GetHistoryEventsRequest(flow_id=flow_id, run_id=run_id)
        response: pb.GetHistoryEventsResponse = await stub.GetHistoryEvents(request)
        return [event.SerializeToString(deterministic=True) for event in response.events]


async def test_timer_that_came_due_while_down_fires_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = SleepFlow()
    async with serve(tmp_path, flow) as app:
        await app.client.start_flow(flow, "f", 3_000)
        # Its WaitFor is over as soon as it waits for the timer.
        while not any(
            step.phase == pb.ACTIVE_STEP_PHASE_WAITING
            for step in (await _state(app.address, "f")).active_step_executions
        ):
            pass
    shift_clock(monkeypatch, 3_600)
    async with serve(tmp_path, flow) as app:
        assert (await app.client.wait_for_flow("f")).single_output(bool) is True


async def test_attributes_messages_and_history_are_kept(tmp_path: Path) -> None:
    flow = SleepFlow()
    async with serve(tmp_path, flow) as app:
        run_id = await app.client.start_flow(flow, "f", 600)
        for text in ("one", "two"):
            await app.call(flow.note, "f", text)
        before = await _state(app.address, "f")
        events = await _history(app.address, "f", run_id)
    async with serve(tmp_path, flow) as app:
        assert await _state(app.address, "f") == before
        assert await _history(app.address, "f", run_id) == events
        assert await app.call(flow.note, "f", "three") == 3


class Once(Step[None]):
    """Runs once at most; hangs."""

    def __init__(self) -> None:
        self.attempts: list[int] = []
        self.has_begun = asyncio.Event()

    def get_step_options(self) -> StepOptions:
        policy = RetryPolicy(maximum_attempts=1)
        return StepOptions(execute_retry=policy).on_execute_failure_proceed_to(AfterLoss)

    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        self.attempts.append(context.attempt)
        self.has_begun.set()
        await asyncio.Event().wait()
        return dead_end()


class AfterLoss(Step[None]):
    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        error = context.recovery_error
        assert error is not None
        return graceful_complete(error.error_type)


class Twice(Step[None]):
    """Hangs in its first attempt."""

    def __init__(self) -> None:
        self.attempts: list[int] = []
        self.has_begun = asyncio.Event()

    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        self.attempts.append(context.attempt)
        self.has_begun.set()
        if context.attempt == 1:
            await asyncio.Event().wait()
        return dead_end()


class Both(Step[None]):
    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        return go_to_many(Movement.of(Once, None), Movement.of(Twice, None))


class LossFlow(Flow[None]):
    def __init__(self) -> None:
        self.once, self.twice = Once(), Twice()

    def get_steps(self) -> StepList[None]:
        return StepList.start_step(Both()).other_steps(self.once, self.twice, AfterLoss())


async def test_open_attempt_is_lost_when_the_engine_starts(tmp_path: Path) -> None:
    flow, path = LossFlow(), tmp_path / "engine.db"
    async with dex_lite.open_engine(path, options=AT_ONCE) as engine:
        app = App(engine.address, tmp_path, [flow])
        await app.start_worker()
        await app.client.start_flow(flow, "f", None)
        await asyncio.gather(flow.once.has_begun.wait(), flow.twice.has_begun.wait())
        port = int(engine.address.rpartition(":")[2])
    async with dex_lite.open_engine(path, port=port):
        # The same Worker comes back by itself.
        await app.connected()
        result = await app.client.wait_for_flow("f")
        await app.close()
    assert result.single_output(str) == "WORKER_DISCONNECTED"
    assert flow.once.attempts == [1]
    assert flow.twice.attempts == [1, 2]


async def test_engine_killed_in_mid_step(tmp_path: Path) -> None:
    flow, chain, data = LossFlow(), Chain(), tmp_path / "engine.db"
    async with engine_process(data) as (process, address):
        app = App(address, tmp_path, [flow, chain])
        await app.start_worker()
        await app.client.start_flow(flow, "f", None)
        await app.client.start_flow(chain, "chain", 100)
        await asyncio.gather(flow.once.has_begun.wait(), flow.twice.has_begun.wait())
        process.send_signal(signal.SIGKILL)
        await process.wait()
    async with engine_process(data, int(address.rpartition(":")[2])):
        # The same Worker comes back by itself; a Client's call has to outlast gRPC's back-off.
        await app.connected()
        result = await app.client.wait_for_flow("f")
        assert (await app.client.wait_for_flow("chain")).single_output(int) == 0
        await app.close()
    assert result.single_output(str) == "WORKER_DISCONNECTED"
    assert flow.once.attempts == [1]
    assert flow.twice.attempts == [1, 2]
