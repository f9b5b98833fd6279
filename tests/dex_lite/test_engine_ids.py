"""The engine through the real SDK, unmodified: Flow ids, request ids, and locks of Steps."""

# mypy: disable-error-code="override"
# The SDK types handlers as synchronous; it takes coroutines too.

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from dex import (
    AsyncContext,
    Attribute,
    Flow,
    FlowAlreadyStartedError,
    FlowNotActiveOrNotFoundError,
    FlowStatus,
    IdReusePolicy,
    PersistenceSchema,
    StartFlowOptions,
    Step,
    StepDecision,
    StepExecutionId,
    StepList,
    StepMovement,
    StepOptions,
    StopFlowOptions,
    StopType,
    WaitForStepCompletionOptions,
    dead_end,
    force_fail,
    go_to_many,
    graceful_complete,
)

from dex_lite_samples import App, serve

total = Attribute("total", int)
A_WHILE = WaitForStepCompletionOptions(request_timeout=timedelta(seconds=30))


class End(Step[str]):
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        if input == "complete":
            return graceful_complete(input)
        return force_fail("told to") if input == "fail" else dead_end()


class EndFlow(Flow[str]):
    def get_steps(self) -> StepList[str]:
        return StepList.start_step(End())


REJECTS = {
    "running": {
        IdReusePolicy.DEFAULT,
        IdReusePolicy.DISALLOW,
        IdReusePolicy.ALLOW_IF_NOT_RUNNING,
        IdReusePolicy.ALLOW_IF_PREVIOUS_FAILED,
    },
    "complete": {
        IdReusePolicy.DEFAULT,
        IdReusePolicy.DISALLOW,
        IdReusePolicy.ALLOW_IF_PREVIOUS_FAILED,
    },
    "fail": {IdReusePolicy.DEFAULT, IdReusePolicy.DISALLOW},
}


async def _first(app: App, flow: EndFlow, flow_id: str, how: str) -> str:
    run_id = await app.client.start_flow(flow, flow_id, how)
    if how == "running":
        await app.client.wait_for_step_completion(flow_id, StepExecutionId("End"), A_WHILE)
    else:
        await app.client.wait_for_flow(flow_id)
    return run_id


@pytest.mark.parametrize("how", REJECTS)
async def test_id_reuse_policies(tmp_path: Path, how: str) -> None:
    flow = EndFlow()
    async with serve(tmp_path, flow) as app:
        for policy in IdReusePolicy:
            first = await _first(app, flow, policy.value, how)
            options = StartFlowOptions(id_reuse_policy=policy)
            if policy in REJECTS[how]:
                with pytest.raises(FlowAlreadyStartedError):
                    await app.client.start_flow(flow, policy.value, "stay", options)
                assert (await app.client.describe_flow(policy.value)).run_id == first
            else:
                second = await app.client.start_flow(flow, policy.value, "stay", options)
                assert second != first
                info = await app.client.describe_flow(policy.value)
                assert (info.run_id, info.status) == (second, FlowStatus.RUNNING)


async def test_repeated_start_with_the_same_request_id(tmp_path: Path) -> None:
    flow = EndFlow()
    same = StartFlowOptions(request_id="r1", ignore_already_started=True)
    async with serve(tmp_path, flow) as app:
        first = await app.client.start_flow(flow, "f", "stay", same)
        assert await app.client.start_flow(flow, "f", "stay", same) == first
        for options in (
            StartFlowOptions(request_id="r1"),
            StartFlowOptions(request_id="r2", ignore_already_started=True),
        ):
            with pytest.raises(FlowAlreadyStartedError):
                await app.client.start_flow(flow, "f", "stay", options)
        await app.client.stop_flow("f", StopFlowOptions(type=StopType.TERMINATE))
        assert await app.client.start_flow(flow, "f", "stay", same) == first
        with pytest.raises(FlowNotActiveOrNotFoundError):
            await app.client.stop_flow("f")


class Spread(Step[int]):
    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        total.set(context, 0)
        return go_to_many(*(StepMovement.of(Add, i) for i in range(input)))


class Add(Step[int]):
    """Reads, yields to others, writes."""

    def __init__(self) -> None:
        self.inside = 0
        self.most_inside = 0
        self.order: list[int] = []

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_lock_attributes=(total.lock(),))

    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        self.order.append(input)
        before = total.get(context)
        await context.heartbeat()
        total.set(context, before + 1)
        self.inside -= 1
        return graceful_complete(before + 1)


class AddFlow(Flow[int]):
    def __init__(self) -> None:
        self.add = Add()

    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Spread()).other_steps(self.add)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(total)


async def test_attribute_locks_of_steps_serialise_in_order(tmp_path: Path) -> None:
    flow = AddFlow()
    async with serve(tmp_path, flow) as app:
        await app.client.start_flow(flow, "f", 12)
        result = await app.client.wait_for_flow("f")
    assert [c.decode(int) for c in result.completions] == list(range(1, 13))
    assert flow.add.order == list(range(12))
    assert flow.add.most_inside == 1
