"""Calls that wait for a person: what is shown and stored, and what an answer changes."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from core.conftest import TURN_S, Stage, Stages
from core.open_flow import OpenFlow, stored
from core.scripted_runner import Answer, Call, ScriptedRunner, Tool
from dex_agents import (
    DeferredToolExecution,
    InterruptKind,
    InterruptRequest,
    PendingInterrupt,
    RunModelOutcome,
    RunModelRequest,
    ToolCallsRequested,
    ToolCallStatus,
    ToolEffect,
    ToolExecutionResult,
)
from dex_agents._session import steps_tools, waiting


class WaitingRunner(ScriptedRunner):
    """A tool may give a whole result; a call of ``ask`` is a question without a tool."""

    async def run_model(self, request: RunModelRequest) -> RunModelOutcome:
        outcome = await super().run_model(request)
        if not isinstance(outcome, ToolCallsRequested):
            return outcome
        question = InterruptRequest(InterruptKind.INPUT, hint="which?")
        calls = [
            replace(call, interrupt=question) if call.tool_name == "ask" else call
            for call in outcome.calls
        ]
        return replace(outcome, calls=calls)

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        given = (await super().execute_deferred_tool_call(call)).output
        return given if isinstance(given, ToolExecutionResult) else ToolExecutionResult(given)


async def until_asked(stage: Stage, after: PendingInterrupt | None = None) -> PendingInterrupt:
    if after is None:
        await stage.sessions.start_session("s", "do it")
    while True:
        snapshot = await stage.sessions.wait_until_settled("s", turns_done=1, timeout_s=TURN_S)
        (pending,) = snapshot.pending_interrupts
        if after is None or pending.interrupt_id != after.interrupt_id:
            return pending


async def test_an_approval_that_a_tool_asks_for_may_change_the_arguments(stages: Stages) -> None:
    async def pay(call: DeferredToolExecution) -> Any:
        if call.answer is None:
            return ToolExecutionResult(interrupt=InterruptRequest(InterruptKind.APPROVAL))
        return "paid"

    script: list[Answer] = [
        [Call("pay", ToolEffect.NON_IDEMPOTENT_WRITE, arguments={"amount": 900})],
        "done",
    ]
    async with stages.play(script, {"pay": pay}, runner_class=WaitingRunner) as stage:
        pending = await until_asked(stage)
        await stage.sessions.resolve_interrupt(
            "s", pending.interrupt_id, approved=True, arguments={"amount": 90}
        )
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert [e.arguments for e in stage.runner.executions] == [{"amount": 900}, {"amount": 90}]
        (record,) = stage.runner.records(1)
        assert (record.output, record.edited_arguments) == ("paid", {"amount": 90})


async def test_a_second_approval_shows_what_the_first_one_made_of_the_call(stages: Stages) -> None:
    async def pay(call: DeferredToolExecution) -> Any:
        if call.answer is None:
            return ToolExecutionResult(interrupt=InterruptRequest(InterruptKind.APPROVAL))
        return "paid"

    script: list[Answer] = [
        [Call("pay", ToolEffect.NON_IDEMPOTENT_WRITE, approval=True, arguments={"amount": 900})],
        "done",
    ]
    async with stages.play(script, {"pay": pay}, runner_class=WaitingRunner) as stage:
        first = await until_asked(stage)
        await stage.sessions.resolve_interrupt(
            "s", first.interrupt_id, approved=True, arguments={"amount": 90}
        )
        second = await until_asked(stage, after=first)
        assert second.arguments == {"amount": 90}
        await stage.sessions.resolve_interrupt(
            "s",
            second.interrupt_id,
            approved=True,
            arguments_digest=second.arguments_digest,
        )
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert [e.arguments for e in stage.runner.executions] == [{"amount": 90}, {"amount": 90}]


async def test_an_answered_question_leaves_no_mark_of_a_call_that_has_not_begun(
    stages: Stages,
) -> None:
    script: list[Answer] = [[Call("ask"), Call("read")], "done"]

    async def read(call: DeferredToolExecution) -> Any:
        return 1

    async with stages.play(
        script, {"read": read}, runner_class=WaitingRunner, flow_class=OpenFlow
    ) as stage:
        pending = await until_asked(stage)
        assert (await stored(stage))["unapproved"] == [pending.interrupt_id]
        await stage.sessions.answer_question("s", pending.interrupt_id, "this")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert await stored(stage) == {}


async def test_a_worker_whose_clock_is_behind_hides_no_question(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The revision is from the clocks of Workers where calls side by side ask."""
    real, ahead_ms = steps_tools.now_ms, [3_600_000]
    monkeypatch.setattr(steps_tools, "now_ms", lambda: real() + ahead_ms[0])
    waits, goes_on = asyncio.Event(), asyncio.Event()
    wait = waiting._wait

    async def seen(*given: Any) -> None:
        waits.set()
        await wait(*given)

    async def first(call: DeferredToolExecution) -> Any:
        if call.answer is None:
            return ToolExecutionResult(interrupt=InterruptRequest(InterruptKind.APPROVAL))
        return "done"

    async def second(call: DeferredToolExecution) -> Any:
        await goes_on.wait()
        return ToolExecutionResult(interrupt=InterruptRequest(InterruptKind.LONG_RUNNING))

    script: list[Answer] = [[Call("first"), Call("second")], "done"]
    tools: dict[str, Tool] = {"first": first, "second": second}
    async with stages.play(script, tools, runner_class=WaitingRunner) as stage:
        pending = await until_asked(stage)
        ahead_ms[0] = 0
        await stage.sessions.resolve_interrupt("s", pending.interrupt_id, approved=True)
        monkeypatch.setattr(waiting, "_wait", seen)
        settled = asyncio.create_task(
            stage.sessions.wait_until_settled("s", turns_done=1, timeout_s=TURN_S)
        )
        await waits.wait()
        goes_on.set()
        (asked,) = (await settled).pending_interrupts
        assert asked.tool_name == "second"


async def test_what_a_tool_leaves_to_be_shown_is_bounded(stages: Stages) -> None:
    shown = random.Random(0).randbytes(6_000_000).hex()  # more than a task carries, compressed too

    async def render(call: DeferredToolExecution) -> Any:
        asked = InterruptRequest(
            InterruptKind.LONG_RUNNING, payload={"log": shown}, framework_data={"job": 1}
        )
        return ToolExecutionResult(interrupt=asked)

    script: list[Answer] = [[Call("render", ToolEffect.NON_IDEMPOTENT_WRITE)], "done"]
    async with stages.play(script, {"render": render}, runner_class=WaitingRunner) as stage:
        pending = await until_asked(stage)
        assert pending.payload["truncated"]
        assert pending.payload["preview"].startswith(f'{{"log": "{shown[:100]}')
        await stage.sessions.answer_question("s", pending.interrupt_id, "there")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        (record,) = stage.runner.records(1)
        assert (record.status, record.output) == (ToolCallStatus.SUCCEEDED, {"result": "there"})
        assert record.framework_data == {"job": 1}
