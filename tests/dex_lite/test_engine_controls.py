"""Timers that a client skips, config that it changes, and closed runs that are deleted in time."""

# mypy: disable-error-code="override"
# The SDK types handlers as synchronous; it takes coroutines too.

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from dex import (
    AsyncContext,
    Channel,
    Context,
    DexServiceError,
    Flow,
    FlowConfig,
    FlowErrorType,
    FlowNotActiveOrNotFoundError,
    FlowNotFoundError,
    FlowResult,
    StartFlowOptions,
    Step,
    StepDecision,
    StepDurability,
    StepExecutionId,
    StepList,
    StopFlowOptions,
    StopType,
    Timer,
    TimerId,
    Wait,
    force_complete,
)
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc

from dex_lite._options import EngineOptions
from dex_lite_samples import App, Chain, Mailbox, serve, serve_sync
from support.cli import command

HOUR = timedelta(hours=1)
never = Channel("never", str)


@asynccontextmanager
async def _stub(address: str) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(address) as channel:
        yield dex_pb2_grpc.FlowServiceStub(channel)


async def _state(app: App, flow_id: str) -> pb.GetFlowStateResponse:
    async with _stub(app.address) as stub:
        state: pb.GetFlowStateResponse = await stub.GetFlowState(
            pb.GetFlowStateRequest(flow_id=flow_id)
        )
        return state


class Doze(Step[None]):
    """Waits for two timers."""

    def __init__(self) -> None:
        self.may_wait = asyncio.Event()
        self.may_wait.set()

    async def wait_for(self, context: AsyncContext, input: None) -> Wait:
        await self.may_wait.wait()
        return Wait.all_of(
            Timer.by_duration(HOUR, condition_id="first"), Timer.by_duration(2 * HOUR)
        )

    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        return force_complete(context.has_timer_fired(0) and context.has_timer_fired(1))


class Dozes(Flow[None]):
    def __init__(self) -> None:
        self.step = Doze()

    def get_steps(self) -> StepList[None]:
        return StepList.start_step(self.step)


DOZE = StepExecutionId("Doze", 1)
FIRST, SECOND = TimerId.by_condition_id("first"), TimerId.by_condition_index(1)


async def _until_it_waits(app: App, flow_id: str) -> pb.ActiveStepExecutionState:
    while True:
        for step in (await _state(app, flow_id)).active_step_executions:
            if step.phase == pb.ACTIVE_STEP_PHASE_WAITING:
                return step


async def test_skipped_timers_count_as_fired(tmp_path: Path) -> None:
    flow = Dozes()
    async with serve(tmp_path, flow) as app:
        await app.client.start_flow(flow, "f", None)
        await _until_it_waits(app, "f")
        await app.client.skip_timer("f", DOZE, FIRST)
        step = await _until_it_waits(app, "f")
        assert [timer.status for timer in step.timers] == [
            pb.INTERNAL_TIMER_STATUS_SKIPPED,
            pb.INTERNAL_TIMER_STATUS_PENDING,
        ]
        with pytest.raises(DexServiceError, match="has fired already"):
            await app.client.skip_timer("f", DOZE, FIRST)
        with pytest.raises(DexServiceError, match="waits for no such timer"):
            await app.client.skip_timer("f", DOZE, TimerId.by_condition_id("other"))
    async with serve(tmp_path, flow) as app:  # what was skipped stays skipped
        await app.client.skip_timer("f", DOZE, SECOND)
        assert (await app.client.wait_for_flow("f")).single_output(bool) is True
        for flow_id in ("f", "unknown"):
            with pytest.raises(FlowNotActiveOrNotFoundError):
                await app.client.skip_timer(flow_id, DOZE, SECOND)
    assert (await command("check", tmp_path / "engine.db")).code == 0


async def test_timers_can_be_skipped_before_they_exist(tmp_path: Path) -> None:
    flow = Dozes()
    flow.step.may_wait.clear()
    async with serve(tmp_path, flow, with_worker=False) as app:
        options = StartFlowOptions(start_delay=timedelta(seconds=1))
        await app.client.start_flow(flow, "f", None, options)
        for _ in range(2):  # a repeated wish is one
            await app.client.skip_timer("f", DOZE, FIRST)
        # Wishes that name nothing are kept as well, and do no harm.
        await app.client.skip_timer("f", DOZE, TimerId.by_condition_id("other"))
        await app.client.skip_timer("f", StepExecutionId("Doze", 2), FIRST)
    async with serve(tmp_path, flow) as app:
        await app.client.skip_timer("f", DOZE, SECOND)
        flow.step.may_wait.set()
        assert (await app.client.wait_for_flow("f")).single_output(bool) is True


async def test_the_timeout_of_a_flow_is_a_timer_too(tmp_path: Path) -> None:
    flow = Dozes()
    async with serve(tmp_path, flow) as app:
        await app.client.start_flow(flow, "f", None, StartFlowOptions(timeout=HOUR))
        await app.client.skip_timer("f", StepExecutionId("sys:timeout_handler", 1), FIRST_OF_ALL)
        assert (await app.client.wait_for_flow("f")).error_type is FlowErrorType.FLOW_TIMEOUT


FIRST_OF_ALL = TimerId.by_condition_index(0)
BAD_SKIPS: dict[str, tuple[dict[str, Any], str]] = {
    "no number": ({"step_execution_id": "Doze"}, "Step type must not be blank"),
    "zero": ({"step_execution_id": "Doze-0"}, "no number from 1"),
    "text": ({"step_execution_id": "Doze-x"}, "no number from 1"),
    "bad type": ({"step_execution_id": "a/b-1"}, "must not contain '/'"),
    "no timer": ({"step_execution_id": "Doze-1"}, "by its condition id or by its index"),
    "two": (
        {"step_execution_id": "Doze-1", "timer_condition_id": "a", "timer_condition_index": 0},
        "by its condition id or by its index",
    ),
    "negative": (
        {"step_execution_id": "Doze-1", "timer_condition_index": -1},
        "must not be negative",
    ),
}


async def test_malformed_skips_and_too_many(tmp_path: Path) -> None:
    flow = Dozes()
    async with serve(tmp_path, flow, with_worker=False) as app, _stub(app.address) as stub:
        await app.client.start_flow(flow, "f", None)
        for fields, told in BAD_SKIPS.values():
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.SkipTimer(pb.SkipTimerRequest(flow_id="f", **fields))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert told in (caught.value.details() or "")
        for index in range(100):
            await app.client.skip_timer("f", DOZE, TimerId.by_condition_index(index))
        with pytest.raises(DexServiceError, match="at most 100 skips"):
            await app.client.skip_timer("f", DOZE, TimerId.by_condition_index(100))


async def test_sync_client_skips(tmp_path: Path) -> None:
    class SyncDoze(Step[None]):
        def wait_for(self, context: Context, input: None) -> Wait:
            return Wait.until(Timer.by_duration(HOUR))

        def execute(self, context: Context, input: None) -> StepDecision:
            return force_complete("woken")

    class SyncDozes(Flow[None]):
        def get_steps(self) -> StepList[None]:
            return StepList.start_step(SyncDoze())

    flow = SyncDozes()
    async with serve_sync(tmp_path, flow) as app:
        await asyncio.to_thread(app.client.start_flow, flow, "f", None)
        step = StepExecutionId("SyncDoze", 1)
        await asyncio.to_thread(app.client.skip_timer, "f", step, FIRST_OF_ALL)
        result: FlowResult = await asyncio.to_thread(app.client.wait_for_flow, "f")
    assert result.single_output(str) == "woken"


async def test_config_changes_field_by_field_and_is_kept(tmp_path: Path) -> None:
    flow = Mailbox()
    async with serve(tmp_path, flow) as app:
        config = FlowConfig(continue_as_new_threshold=7, attribute_store_names=["a", "b"])
        await app.client.start_flow(flow, "f", 0, StartFlowOptions(config_override=config))
        before = (await _state(app, "f")).flow_config
        assert (before.continue_as_new_threshold, before.step_durability) == (7, 0)
        change = FlowConfig(step_durability=StepDurability.ASYNC, attribute_store_names=["c"])
        await app.client.update_flow_config("f", change)
        with pytest.raises(FlowNotActiveOrNotFoundError):
            await app.client.update_flow_config("unknown", change)
    async with serve(tmp_path, flow) as app:
        after = (await _state(app, "f")).flow_config
        assert after.continue_as_new_threshold == 7
        assert after.step_durability == pb.STEP_DURABILITY_ASYNC
        assert list(after.attribute_store_names.names) == ["c"]
        # Steps go on under it.
        await app.call(flow.send, "f", "end")
        assert (await app.client.wait_for_flow("f")).single_output(int) == 1
    assert (await command("check", tmp_path / "engine.db")).code == 0


async def test_config_that_names_nothing_is_refused(tmp_path: Path) -> None:
    flow = Mailbox()
    async with serve(tmp_path, flow, with_worker=False) as app, _stub(app.address) as stub:
        await app.client.start_flow(flow, "f", 0)
        for config in (
            pb.FlowConfig(step_durability=99),  # type: ignore[arg-type]
            pb.FlowConfig(active_step_search_mode=99),  # type: ignore[arg-type]
        ):
            request = pb.UpdateFlowConfigRequest(flow_id="f", flow_config=config)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.UpdateFlowConfig(request)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "99" in (caught.value.details() or "")


async def _until_gone(app: App, flow_id: str) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await app.client.describe_flow(flow_id)
            except FlowNotFoundError:
                return


async def test_closed_runs_are_deleted_when_their_time_is_over(tmp_path: Path) -> None:
    chain, mailbox = Chain(), Mailbox()
    async with serve(tmp_path, chain, mailbox) as app:  # without retention everything stays
        await app.client.start_flow(mailbox, "open", 0)
        for number in range(60):
            await app.client.start_flow(chain, f"closed-{number}", 1)
        for number in range(60):
            await app.client.wait_for_flow(f"closed-{number}")
    options = EngineOptions(retention_s=0.1)
    async with serve(tmp_path, chain, mailbox, options=options) as app:
        for number in range(60):
            await _until_gone(app, f"closed-{number}")
        # An id is free again, whatever the reuse policy.
        await app.client.start_flow(chain, "closed-1", 1)
        await _until_gone(app, "closed-1")
        await app.call(mailbox.send, "open", "still here")
        await app.client.stop_flow("open", StopFlowOptions(StopType.TERMINATE))
        await _until_gone(app, "open")
        await app.client.start_flow(mailbox, "open", 0)
    report = (await command("check", tmp_path / "engine.db", "--json")).json
    assert report["ok"]
    counts = {check["name"]: check["count"] for check in report["checks"]}
    assert counts["runs"] == 1
    async with serve(tmp_path, chain, mailbox, options=options) as app:
        await app.call(mailbox.send, "open", "end")
