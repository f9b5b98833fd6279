"""Flows that the engine tests run through the real SDK."""

from __future__ import annotations

from datetime import timedelta

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
    Timer,
    Wait,
    force_complete,
    go_to,
    graceful_complete,
    rpc,
)

count = Attribute("count", int)
inbox = Channel("inbox", str)


class Hop(Step[int]):
    """Counts down to zero."""

    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        if input == 0:
            return graceful_complete(0)
        return go_to(Hop, input - 1)


class Chain(Flow[int]):
    """A chain of Steps."""

    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Hop())


class Listen(Step[int]):
    """Waits for a message or a minute."""

    async def wait_for(self, context: AsyncContext, input: int) -> Wait:
        return Wait.any_of(inbox.for_one(), Timer.by_duration(timedelta(seconds=60)))

    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        values = inbox.results(context)
        count.set(context, (count.get(context) or 0) + 1)
        if values and values[0] == "end":
            return force_complete(count.get(context))
        return go_to(Listen, input + 1)


class Mailbox(Flow[int]):
    """Takes messages by RPC until it is told to end."""

    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Listen())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(count, inbox)

    @rpc
    async def send(self, context: Context, text: str) -> RPCResult[int]:
        inbox.publish(context, text)
        return RPCResult(inbox.size(context))

    @rpc
    async def read(self, context: Context) -> RPCResult[int]:
        return RPCResult(count.get(context) or 0)
