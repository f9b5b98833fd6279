"""The engine through the real SDK, unmodified: Steps, waits and closing decisions."""

# mypy: disable-error-code="override"
# The SDK types handlers as synchronous; it takes coroutines too.

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from dex import (
    AsyncContext,
    Channel,
    ChannelMap,
    Context,
    Flow,
    FlowErrorType,
    FlowStatus,
    PersistenceSchema,
    RetryPolicy,
    RPCResult,
    Step,
    StepDecision,
    StepExecutionId,
    StepList,
    StepMovement,
    StepOptions,
    StopFlowOptions,
    StopType,
    Timer,
    Wait,
    WaitForStepCompletionOptions,
    dead_end,
    force_complete,
    force_complete_if_channels_empty,
    force_fail,
    go_to,
    go_to_many,
    graceful_complete,
    rpc,
)

from dex_lite_samples import Chain, Mailbox, serve

results = ChannelMap("results", int)
jobs = Channel("jobs", str)


async def test_chain_of_steps(tmp_path: Path) -> None:
    chain = Chain()
    async with serve(tmp_path, chain) as app:
        await app.client.start_flow(chain, "f", 20)
        result = await app.client.wait_for_flow("f")
    assert result.status is FlowStatus.COMPLETED
    assert result.single_output(int) == 0
    assert result.completions[0].step_execution_id == "Hop-21"


async def test_wait_on_a_channel_fed_by_an_rpc(tmp_path: Path) -> None:
    mailbox = Mailbox()
    async with serve(tmp_path, mailbox) as app:
        await app.client.start_flow(mailbox, "f", 0)
        for text in ("a", "b", "end"):
            await app.call(mailbox.send, "f", text)
        assert (await app.client.wait_for_flow("f")).single_output(int) == 3


class Either(Step[int]):
    """Waits for a message or for so many seconds."""

    async def wait_for(self, context: AsyncContext, input: int) -> Wait:
        return Wait.any_of(jobs.for_one(), Timer.by_duration(timedelta(seconds=input)))

    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        return force_complete(f"{context.has_timer_fired()} {list(jobs.results(context))}")


class EitherFlow(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Either())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(jobs)

    @rpc
    async def send(self, context: Context, text: str) -> None:
        jobs.publish(context, text)


async def test_any_of_with_a_timer(tmp_path: Path) -> None:
    flow = EitherFlow()
    async with serve(tmp_path, flow) as app:
        await app.client.start_flow(flow, "late", 1)
        await app.client.start_flow(flow, "early", 600)
        await app.call(flow.send, "early", "hello")
        early = await app.client.wait_for_flow("early")
        late = await app.client.wait_for_flow("late")
    assert early.single_output(str) == "False ['hello']"
    assert late.single_output(str) == "True []"


class Recover(Step[str]):
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        error = context.recovery_error
        assert error is not None
        return force_complete(
            "|".join((input, error.error_type, error.detail, context.from_step_execution_id))
        )


class Fails(Step[str]):
    def __init__(self) -> None:
        self.attempts: list[int] = []

    def get_step_options(self) -> StepOptions:
        policy = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=2)
        return StepOptions(execute_retry=policy).on_execute_failure_proceed_to(Recover)

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        self.attempts.append(context.attempt)
        raise LookupError(f"broken {context.attempt}")


class FailFlow(Flow[str]):
    def __init__(self) -> None:
        self.fails = Fails()

    def get_steps(self) -> StepList[str]:
        return StepList.start_step(self.fails).other_steps(Recover())


async def test_retry_then_recovery_step(tmp_path: Path) -> None:
    flow = FailFlow()
    async with serve(tmp_path, flow) as app:
        await app.client.start_flow(flow, "f", "x")
        result = await app.client.wait_for_flow("f")
    assert flow.fails.attempts == [1, 2]
    step_input, error_type, detail, source = result.single_output(str).split("|")
    assert step_input == "x"
    assert error_type == "builtins.LookupError"
    assert "broken 2" in detail
    assert source == "Fails-1"


class FanOut(Step[int]):
    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        return go_to_many(
            StepMovement.of(Join, input), *(StepMovement.of(Part, i) for i in range(input))
        )


class Part(Step[int]):
    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        results.publish(context, "r", input)
        return dead_end()


class Join(Step[int]):
    async def wait_for(self, context: AsyncContext, input: int) -> Wait:
        return Wait.until(results.for_n("r", input))

    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        return graceful_complete(str(sorted(results.results(context, "r"))))


class JoinFlow(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(FanOut()).other_steps(Part(), Join())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(results)


async def test_parallel_steps_join_by_a_channel_map(tmp_path: Path) -> None:
    flow = JoinFlow()
    async with serve(tmp_path, flow) as app:
        await app.client.start_flow(flow, "f", 8)
        assert (await app.client.wait_for_flow("f")).single_output(str) == str(list(range(8)))


class Ends(Step[str]):
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        return force_fail("no way") if input == "fail" else dead_end()


class EndsFlow(Flow[str]):
    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Ends())


async def test_force_fail_and_the_kinds_of_stop(tmp_path: Path) -> None:
    flow = EndsFlow()
    async with serve(tmp_path, flow) as app:
        client = app.client
        await client.start_flow(flow, "forced", "fail")
        failed = await client.wait_for_flow("forced")
        assert failed.status is FlowStatus.FAILED
        assert failed.error_type is FlowErrorType.STEP_DECISION_FAILED
        assert failed.error_message == "no way"
        for kind, status in (
            (StopType.CANCEL, FlowStatus.CANCELED),
            (StopType.TERMINATE, FlowStatus.TERMINATED),
            (StopType.FAIL, FlowStatus.FAILED),
        ):
            await client.start_flow(flow, kind.value, "dead end")
            ended = StepExecutionId("Ends")
            options = WaitForStepCompletionOptions(request_timeout=timedelta(seconds=30))
            await client.wait_for_step_completion(kind.value, ended, options)
            assert (await client.describe_flow(kind.value)).status is FlowStatus.RUNNING
            await client.stop_flow(kind.value, StopFlowOptions(type=kind, reason="enough"))
            result = await client.wait_for_flow(kind.value)
            assert result.status is status
            if kind is StopType.FAIL:
                assert result.error_type is FlowErrorType.CLIENT_API_FAILED
                assert result.error_message == "enough"


class CloseIfEmpty(Step[int]):
    """Takes one message; publishes another behind it the first time."""

    async def wait_for(self, context: AsyncContext, input: int) -> Wait:
        return Wait.until(jobs.for_one())

    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        if input == 0:
            jobs.publish(context, "one more")
        fallback = StepMovement.of(CloseIfEmpty, input + 1)
        return force_complete_if_channels_empty(input, fallback, jobs)


class CloseIfEmptyFlow(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(CloseIfEmpty())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(jobs)

    @rpc
    async def send(self, context: Context, text: str) -> RPCResult[int]:
        jobs.publish(context, text)
        return RPCResult(jobs.size(context))


async def test_force_complete_if_channels_empty_takes_the_fallback(tmp_path: Path) -> None:
    flow = CloseIfEmptyFlow()
    async with serve(tmp_path, flow) as app:
        await app.client.start_flow(flow, "f", 0)
        await app.call(flow.send, "f", "first")
        result = await app.client.wait_for_flow("f")
    assert [c.decode(int) for c in result.completions] == [1]
    assert result.completions[0].step_execution_id == "CloseIfEmpty-2"


class Parallel(Step[int]):
    """Three of them complete gracefully; the Flow ends with the last."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        if input == 3:
            return go_to_many(*(StepMovement.of(Parallel, i) for i in range(3)))
        if input == 0:
            await self.go_on.wait()
            return go_to(Parallel, 2)
        return graceful_complete(input)


class ParallelFlow(Flow[int]):
    def __init__(self) -> None:
        self.step = Parallel()

    def get_steps(self) -> StepList[int]:
        return StepList.start_step(self.step)


@pytest.mark.parametrize("number", [3, 4])
async def test_graceful_completion_waits_for_the_last_step(tmp_path: Path, number: int) -> None:
    flow = ParallelFlow()
    async with serve(tmp_path, flow) as app:
        await app.client.start_flow(flow, "f", 3)
        options = WaitForStepCompletionOptions(request_timeout=timedelta(seconds=30))
        await app.client.wait_for_step_completion("f", StepExecutionId("Parallel", number), options)
        assert (await app.client.describe_flow("f")).status is FlowStatus.RUNNING
        flow.step.go_on.set()
        result = await app.client.wait_for_flow("f")
    assert sorted(c.decode(int) for c in result.completions) == [1, 2, 2]
