"""The engine through the real SDK, unmodified: attempts, heartbeats, time limits, dispatch."""

# mypy: disable-error-code="override"
# The SDK types handlers as synchronous; it takes coroutines too.

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

from dex import (
    AsyncContext,
    Attribute,
    Channel,
    Flow,
    PersistenceSchema,
    RetryPolicy,
    Step,
    StepDecision,
    StepDurability,
    StepExecutionId,
    StepList,
    StepOptions,
    WaitForStepCompletionOptions,
    force_complete,
    go_to,
)

from dex_lite import Limits
from dex_lite._options import EngineOptions
from dex_lite_samples import App, Chain, serve

Body = Callable[[AsyncContext], Awaitable[StepDecision]]
first_load = Attribute("first_load", str)
second_load = Attribute("second_load", str)
parcels = Channel("parcels", str)
NO_BLOBS = EngineOptions(limits=Limits(task_blobs=1))


class Rescue(Step[None]):
    """Ends the Flow with what it is told."""

    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        error = context.recovery_error
        assert error is not None
        return force_complete(f"{error.error_type}: {error.detail}")


class Work(Step[None]):
    """Does what a test says, so many times at most."""

    def __init__(self, body: Body, options: StepOptions, max_attempts: int) -> None:
        self.attempts: list[int] = []
        self._body = body
        policy = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=max_attempts)
        self._options = StepOptions(
            execute_method_timeout=options.execute_method_timeout,
            heartbeat_timeout=options.heartbeat_timeout,
            execute_durability=options.execute_durability,
            execute_load_channels=options.execute_load_channels,
            execute_retry=policy,
        ).on_execute_failure_proceed_to(Rescue)

    def get_step_options(self) -> StepOptions:
        return self._options

    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        self.attempts.append(context.attempt)
        return await self._body(context)


class WorkFlow(Flow[None]):
    def __init__(
        self, body: Body, options: StepOptions | None = None, max_attempts: int = 1
    ) -> None:
        self.work = Work(body, options or StepOptions(), max_attempts)

    def get_steps(self) -> StepList[None]:
        return StepList.start_step(self.work).other_steps(Rescue())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(first_load, second_load)


async def _for_ever(context: AsyncContext) -> StepDecision:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def _result(tmp_path: Path, flow: WorkFlow, options: EngineOptions | None = None) -> str:
    async with serve(tmp_path, flow, options=options) as app:
        await app.client.start_flow(flow, "f", None)
        return (await app.client.wait_for_flow("f")).single_output(str)


async def test_heartbeat_value_reaches_the_next_attempt(tmp_path: Path) -> None:
    async def body(context: AsyncContext) -> StepDecision:
        if context.attempt == 1:
            assert not context.has_last_heartbeat_value()
            for value in range(50):  # faster than they are written: the newest counts
                await context.heartbeat(value)
            raise RuntimeError("once more")
        return force_complete(str(context.get_last_heartbeat_value(int)))

    flow = WorkFlow(body, max_attempts=2)
    assert await _result(tmp_path, flow) == "49"
    assert flow.work.attempts == [1, 2]


async def test_heartbeat_without_a_value_clears_it(tmp_path: Path) -> None:
    async def body(context: AsyncContext) -> StepDecision:
        if context.attempt == 1:
            await context.heartbeat(1)
            await context.heartbeat()
            raise RuntimeError("once more")
        return force_complete(str(context.has_last_heartbeat_value()))

    assert await _result(tmp_path, WorkFlow(body, max_attempts=2)) == "False"


async def test_heartbeat_timeout(tmp_path: Path) -> None:
    flow = WorkFlow(_for_ever, StepOptions(heartbeat_timeout=timedelta(seconds=1)))
    assert (await _result(tmp_path, flow)).startswith("TIMEOUT_TYPE_HEARTBEAT: ")


async def test_method_timeout(tmp_path: Path) -> None:
    cancelled = asyncio.Event()

    async def body(context: AsyncContext) -> StepDecision:
        try:
            return await _for_ever(context)
        finally:
            cancelled.set()

    flow = WorkFlow(body, StepOptions(execute_method_timeout=timedelta(seconds=1)))
    told = await _result(tmp_path, flow)
    assert told.startswith("TIMEOUT_TYPE_START_TO_CLOSE: ")
    assert "timeout" in told
    await cancelled.wait()


class Fill(Step[None]):
    """Makes the state larger than a Worker can take in one task, in two Steps."""

    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        first_load.set(context, "x" * 2_500_000)
        return go_to(FillMore, None)


class FillMore(Step[None]):
    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        first_load.set(context, "x" * 1_000_000)
        second_load.set(context, "x" * 3_500_000)
        return go_to(Work, None)


class LargeFlow(WorkFlow):
    def get_steps(self) -> StepList[None]:
        return StepList.start_step(Fill()).other_steps(FillMore(), self.work, Rescue())


async def test_task_that_is_too_large_disturbs_no_other_flow(tmp_path: Path) -> None:
    large, chain = LargeFlow(_for_ever), Chain()
    async with serve(tmp_path, large, chain, options=NO_BLOBS) as app:
        await app.client.start_flow(large, "large", None)
        await app.client.start_flow(chain, "small", 30)
        assert (await app.client.wait_for_flow("small")).single_output(int) == 0
        failed = await app.client.wait_for_flow("large")
        await app.client.start_flow(chain, "after", 30)
        assert (await app.client.wait_for_flow("after")).single_output(int) == 0
    # The recovery Step is as large; so the Flow fails, with a word that says why.
    assert large.work.attempts == []
    assert failed.error_message is not None
    assert "a Worker takes at most" in failed.error_message


class Publish(Step[None]):
    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        for _ in range(2):
            parcels.publish(context, "x" * 2_500_000)
        return go_to(Work, None)


class ParcelFlow(WorkFlow):
    def get_steps(self) -> StepList[None]:
        return StepList.start_step(Publish()).other_steps(self.work, Rescue())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(parcels)


async def test_recovery_step_hears_of_a_task_that_is_too_large(tmp_path: Path) -> None:
    options = StepOptions(execute_load_channels=(parcels,))
    flow = ParcelFlow(_for_ever, options, max_attempts=5)
    assert (await _result(tmp_path, flow, NO_BLOBS)).startswith("TASK_TOO_LARGE: ")
    assert flow.work.attempts == []


async def test_step_without_a_worker_waits_and_uses_no_attempt(tmp_path: Path) -> None:
    async def body(context: AsyncContext) -> StepDecision:
        return force_complete(f"attempt {context.attempt}")

    flow = WorkFlow(body)
    short = EngineOptions(step_dispatch_wait_s=0.05)
    async with serve(tmp_path, flow, options=short, with_worker=False) as app:
        await app.client.start_flow(flow, "f", None)
        waiting = asyncio.create_task(app.client.wait_for_flow("f"))
        await asyncio.wait({waiting}, timeout=0.3)
        assert not waiting.done()
        await app.start_worker()
        assert (await waiting).single_output(str) == "attempt 1"


class OtherRelease(Flow[None]):
    """The same Flow type in a Worker that does not have the Step Work."""

    def get_flow_type(self) -> str:
        return "WorkFlow"

    def get_steps(self) -> StepList[None]:
        return StepList.without_start_step(Rescue())


STRICT = EngineOptions(strict_dispatch=True, step_dispatch_wait_s=0.2)


async def test_strict_dispatch_without_a_worker_fails_the_attempt(tmp_path: Path) -> None:
    flow = WorkFlow(_for_ever)
    async with serve(tmp_path, flow, options=STRICT, with_worker=False) as app:
        await app.client.start_flow(flow, "f", None)
        options = WaitForStepCompletionOptions(request_timeout=timedelta(seconds=30))
        await app.client.wait_for_step_completion("f", StepExecutionId("Work"), options)
        await app.start_worker()
        told = (await app.client.wait_for_flow("f")).single_output(str)
    assert flow.work.attempts == []
    assert told == "NO_WORKER_AVAILABLE: no Worker took Work within 0.2 s"


async def test_strict_dispatch_with_an_unknown_step_fails_the_attempt(tmp_path: Path) -> None:
    flow = WorkFlow(_for_ever)
    async with serve(tmp_path, flow, options=STRICT, with_worker=False) as app:
        other = App(app.address, tmp_path / "other", [OtherRelease()])
        await other.start_worker()
        await app.client.start_flow(flow, "f", None)
        told = (await app.client.wait_for_flow("f")).single_output(str)
        await other.close()
    assert told == "UNKNOWN_NAME: no Worker took Work within 0.2 s"


async def test_asynchronous_durability_ends_alike(tmp_path: Path) -> None:
    async def body(context: AsyncContext) -> StepDecision:
        if context.attempt == 1:
            raise RuntimeError("once more")
        return force_complete("done")

    options = StepOptions(execute_durability=StepDurability.ASYNC)
    assert await _result(tmp_path, WorkFlow(body, options, max_attempts=2)) == "done"
