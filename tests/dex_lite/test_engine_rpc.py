"""The engine through the real SDK, unmodified: RPCs, locks, Attributes and ids."""

# mypy: disable-error-code="override"
# The SDK types handlers as synchronous; it takes coroutines too.

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from dex import (
    AsyncContext,
    Attribute,
    AttributeMatch,
    Channel,
    ChannelMessageNotFoundError,
    Context,
    Flow,
    FlowNotActiveOrNotFoundError,
    FlowNotFoundError,
    FlowStatus,
    PersistenceSchema,
    RequestTimeoutError,
    RpcLockConflictError,
    RPCResult,
    Step,
    StepDecision,
    StepExecutionId,
    StepList,
    StepMovement,
    WaitForAttributeOptions,
    WaitForStepCompletionOptions,
    WorkerInvocationError,
    dead_end,
    force_complete,
    rpc,
)

from dex_lite._engine import Engine
from dex_lite_samples import App, serve

number = Attribute("number", int)
text = Attribute("text", str)
flag = Attribute("flag", bool)
notes = Channel("notes", str)


class Idle(Step[None]):
    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        return dead_end()


class Finish(Step[None]):
    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        return force_complete(number.get(context) or 0)


class Late(Step[None]):
    """Waits for ever, and tries to write after it was cancelled."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()
        self.is_cancelled = asyncio.Event()
        self.may_end = asyncio.Event()

    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        self.has_begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.is_cancelled.set()
            await self.may_end.wait()
        number.set(context, 666)
        return force_complete(666)


class Open(Flow[None]):
    """Open until told otherwise."""

    def __init__(self) -> None:
        self.late = Late()
        self.in_rpc = asyncio.Event()
        self.rpc_may_end = asyncio.Event()

    def get_steps(self) -> StepList[None]:
        return StepList.start_step(Idle()).other_steps(Finish(), self.late)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(number, text, flag, notes)

    @rpc
    async def read(self, context: Context) -> RPCResult[int]:
        return RPCResult(number.get(context) or 0)

    @rpc
    async def write(self, context: Context, value: int) -> RPCResult[int]:
        number.set(context, value)
        text.set(context, f"text {value}")
        flag.set(context, bool(value))
        return RPCResult(value)

    @rpc(lock_attributes=(number.lock(),))
    async def add_slowly(self, context: Context, value: int) -> RPCResult[int]:
        before = number.get(context) or 0
        self.in_rpc.set()
        await self.rpc_may_end.wait()
        number.set(context, before + value)
        return RPCResult(before + value)

    @rpc(is_transactional=True)
    async def drop_unknown_note(self, context: Context) -> None:
        number.set(context, 99)
        notes.delete(context, "no such message")

    @rpc
    async def fail(self, context: Context) -> None:
        raise LookupError("not here")

    @rpc
    async def finish(self, context: Context) -> RPCResult[int]:
        return RPCResult(1, next_steps=(StepMovement.of(Finish, None),))

    @rpc
    async def start_late(self, context: Context) -> RPCResult[int]:
        return RPCResult(1, next_steps=(StepMovement.of(Late, None),))

    @rpc
    async def cancel_late(self, context: Context) -> RPCResult[int]:
        return RPCResult(1, canceling_steps=(Late,))


async def _opened(app: App, flow: Open, flow_id: str = "f") -> None:
    await app.client.start_flow(flow, flow_id, None)


async def test_locked_rpc_conflict(tmp_path: Path) -> None:
    flow = Open()
    async with serve(tmp_path, flow) as app:
        await _opened(app, flow)
        first = asyncio.create_task(app.call(flow.add_slowly, "f", 2))
        await flow.in_rpc.wait()
        with pytest.raises(RpcLockConflictError):
            await app.call(flow.add_slowly, "f", 3)
        assert await app.call(flow.read, "f") == 0  # needs no lock
        flow.rpc_may_end.set()
        assert await first == 2
        assert await app.call(flow.add_slowly, "f", 3) == 5


async def test_query_answers_on_a_closed_flow_and_effects_do_not(tmp_path: Path) -> None:
    flow = Open()
    async with serve(tmp_path, flow) as app:
        await _opened(app, flow)
        await app.call(flow.write, "f", 5)
        await app.call(flow.finish, "f")
        assert (await app.client.wait_for_flow("f")).single_output(int) == 5
        assert await app.call(flow.read, "f") == 5
        for method, value in ((flow.write, 6), (flow.finish, None), (flow.add_slowly, 1)):
            with pytest.raises(FlowNotActiveOrNotFoundError):
                await app.call(method, "f", value)
        assert await app.call(flow.read, "f") == 5
        with pytest.raises(FlowNotActiveOrNotFoundError):
            await app.call(flow.read, "unknown")
        with pytest.raises(FlowNotFoundError):
            await app.client.wait_for_flow("unknown")


async def test_strict_rpc_with_an_unknown_message_commits_nothing(tmp_path: Path) -> None:
    flow = Open()
    async with serve(tmp_path, flow) as app:
        await _opened(app, flow)
        with pytest.raises(ChannelMessageNotFoundError):
            await app.call(flow.drop_unknown_note, "f")
        assert await app.call(flow.read, "f") == 0


async def test_failing_rpc_tells_type_and_detail(tmp_path: Path) -> None:
    flow = Open()
    async with serve(tmp_path, flow) as app:
        await _opened(app, flow)
        with pytest.raises(WorkerInvocationError) as caught:
            await app.call(flow.fail, "f")
    assert caught.value.worker_error_type == "builtins.LookupError"
    assert "not here" in caught.value.worker_error_detail


async def test_cancelled_step_writes_nothing_more(tmp_path: Path) -> None:
    flow = Open()
    async with serve(tmp_path, flow) as app:
        await _opened(app, flow)
        await app.call(flow.start_late, "f")
        await flow.late.has_begun.wait()
        await app.call(flow.cancel_late, "f")
        options = WaitForStepCompletionOptions(request_timeout=timedelta(seconds=30))
        await app.client.wait_for_step_completion("f", StepExecutionId("Late"), options)
        await flow.late.is_cancelled.wait()
        flow.late.may_end.set()
        assert await app.call(flow.write, "f", 7) == 7
        await app.call(flow.finish, "f")
        assert (await app.client.wait_for_flow("f")).single_output(int) == 7


async def test_closing_cancels_running_handlers(tmp_path: Path) -> None:
    flow = Open()
    async with serve(tmp_path, flow) as app:
        await _opened(app, flow)
        await app.call(flow.start_late, "f")
        await flow.late.has_begun.wait()
        await app.client.stop_flow("f")
        await flow.late.is_cancelled.wait()
        flow.late.may_end.set()
        assert (await app.client.wait_for_flow("f")).status is FlowStatus.CANCELED
        assert await app.call(flow.read, "f") == 0


async def test_waits_for_attributes(tmp_path: Path) -> None:
    flow = Open()
    forever = WaitForAttributeOptions(request_timeout=timedelta(seconds=60))
    cases: list[tuple[Any, Any, Any]] = [
        (number, AttributeMatch.equal_to(5), 5),
        (number, AttributeMatch.not_equal_to(4), 5),
        (number, AttributeMatch.greater_than(4), 5),
        (number, AttributeMatch.greater_than_or_equal(5), 5),
        (number, AttributeMatch.less_than(6), 5),
        (number, AttributeMatch.less_than_or_equal(5), 5),
        (text, AttributeMatch.not_equal_to("text"), "text 5"),
        (flag, AttributeMatch.equal_to(True), True),
    ]
    async with serve(tmp_path, flow) as app:
        await _opened(app, flow)
        # Nothing is set yet: not even "not equal" matches.
        with pytest.raises(RequestTimeoutError):
            await app.client.wait_for_attribute_match(
                "f",
                number,
                AttributeMatch.not_equal_to(0),
                WaitForAttributeOptions(request_timeout=timedelta(seconds=1)),
            )
        waits = [
            asyncio.create_task(app.client.wait_for_attribute_match("f", key, match, forever))
            for key, match, _ in cases
        ]
        await app.call(flow.write, "f", 5)
        assert await asyncio.gather(*waits) == [value for _, _, value in cases]
        never = asyncio.create_task(
            app.client.wait_for_attribute_match("f", number, AttributeMatch.equal_to(-1), forever)
        )
        await app.call(flow.finish, "f")
        with pytest.raises(FlowNotActiveOrNotFoundError):
            await never


async def test_flow_that_closes_during_a_locked_rpc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines: list[Engine] = []

    class Watched(Engine):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            engines.append(self)

    monkeypatch.setattr("dex_lite._server.Engine", Watched)
    flow = Open()
    async with serve(tmp_path, flow) as app:
        await _opened(app, flow)
        running = asyncio.create_task(app.call(flow.add_slowly, "f", 2))
        await flow.in_rpc.wait()
        await app.client.stop_flow("f")
        assert (await app.client.wait_for_flow("f")).status is FlowStatus.CANCELED
        flow.rpc_may_end.set()
        with pytest.raises(FlowNotActiveOrNotFoundError):
            await running
        assert await app.call(flow.read, "f") == 0
        assert engines[0].runs == {}  # nothing keeps the closed run in memory
