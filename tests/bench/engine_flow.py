"""The Flows that ``./ci.sh bench engine`` runs in a Worker process."""

# mypy: disable-error-code="override"
# The SDK types handlers as synchronous; it takes coroutines too.

from __future__ import annotations

import time
from typing import Any

from dex import (
    AsyncContext,
    Attribute,
    Channel,
    Context,
    Flow,
    PersistenceSchema,
    RPCResult,
    Step,
    StepDecision,
    StepList,
    Wait,
    force_complete,
    go_to,
    rpc,
)

count = Attribute("count", int)
inbox = Channel("inbox", str)


class Hop(Step[int]):
    """Counts down; at the end the Flow's output is when each Step began, in microseconds."""

    def __init__(self) -> None:
        self._began: dict[str, list[int]] = {}

    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        began = self._began.setdefault(context.flow_id, [])
        began.append(time.perf_counter_ns() // 1_000)
        if input > 0:
            return go_to(Hop, input - 1)
        return force_complete(" ".join(map(str, self._began.pop(context.flow_id))))


class Hops(Flow[int]):
    """A chain of Steps that do nothing."""

    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Hop())


class Idle(Step[None]):
    """Waits for a message."""

    async def wait_for(self, context: AsyncContext, input: None) -> Wait:
        return Wait.until(inbox.for_one())

    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        return force_complete(1)


class Waiting(Flow[None]):
    """An open Flow that does nothing, and can be read."""

    def get_steps(self) -> StepList[None]:
        return StepList.start_step(Idle())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(count, inbox)

    @rpc
    async def read(self, context: Context) -> RPCResult[int]:
        return RPCResult(count.get(context) or 0)

    @rpc
    async def finish(self, context: Context) -> RPCResult[None]:
        inbox.publish(context, "end")
        return RPCResult(None)


def build() -> list[Flow[Any]]:
    """For a Worker process."""
    return [Hops(), Waiting()]
