"""Flows for Workers that are killed; everything that really ran is in a ledger."""

# mypy: disable-error-code="override"
# The SDK types handlers as synchronous; it takes coroutines too.

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from dex import (
    AsyncContext,
    Attribute,
    Channel,
    Context,
    Flow,
    PersistenceSchema,
    RetryPolicy,
    RPCResult,
    Step,
    StepDecision,
    StepList,
    StepOptions,
    Wait,
    force_complete,
    go_to,
    rpc,
)

from dex_agents.testing import Ledger

STEPS = 20  # of a Chain; each of them has a Step before it that runs once at most
inbox = Channel("inbox", str)
got = Attribute("got", str)  # a space after each text


class Again(Step[int]):
    """May run any number of times."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        self._ledger.record("again", flow=context.flow_id, number=input)
        await asyncio.sleep(0.005)
        return force_complete(input) if input >= STEPS else go_to(Once, input)


class Once(Step[int]):
    """Runs once at most; if its Worker is lost, Rescue goes on."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def get_step_options(self) -> StepOptions:
        policy = RetryPolicy(maximum_attempts=1)
        return StepOptions(execute_retry=policy).on_execute_failure_proceed_to(Rescue)

    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        await context.heartbeat()  # before the effect, so that the engine knows that it runs
        self._ledger.record("once", flow=context.flow_id, number=input)
        await asyncio.sleep(0.005)
        return go_to(Again, input + 1)


class Rescue(Step[int]):
    """The outcome of Once is unknown."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def execute(self, context: AsyncContext, input: int) -> StepDecision:
        assert context.recovery_error is not None
        self._ledger.record("rescue", flow=context.flow_id, number=input)
        return go_to(Again, input + 1)


class Chain(Flow[int]):
    """Counts to STEPS."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def get_steps(self) -> StepList[int]:
        ledger = self._ledger
        return StepList.start_step(Again(ledger)).other_steps(Once(ledger), Rescue(ledger))


class Take(Step[None]):
    """Takes one message at a time."""

    async def wait_for(self, context: AsyncContext, input: None) -> Wait:
        return Wait.until(inbox.for_one())

    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        (text,) = inbox.results(context)
        if text == "end":
            return force_complete(got.get(context) or "")
        got.set(context, f"{got.get(context) or ''}{text} ")
        return go_to(Take, None)


class Mailbox(Flow[None]):
    """Keeps what it is sent."""

    def get_steps(self) -> StepList[None]:
        return StepList.start_step(Take())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(got, inbox)

    @rpc
    async def send(self, context: Context, text: str) -> RPCResult[None]:
        inbox.publish(context, text)
        return RPCResult(None)


def build(folder: Path) -> list[Flow[Any]]:
    """For a Worker process."""
    return [Chain(Ledger(folder / "ledger")), Mailbox()]
