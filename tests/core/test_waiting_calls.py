"""Calls that wait for a person: what is shown and stored, and what an answer changes."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from dex import Context, RPCResult, rpc

from core.conftest import TURN_S, Stage, Stages
from core.scripted_runner import Answer, Call, ScriptedRunner
from dex_agents import (
    AgentSessionFlow,
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
from dex_agents._session import resources
from dex_agents._session.encoding import decode, encode


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


class OpenFlow(AgentSessionFlow):
    """Tells which marks of calls that have not begun are stored."""

    @rpc(name="unapproved", load_attribute_maps=(resources.unapproved,))
    def unapproved_rpc(self, context: Context) -> RPCResult[bytes]:
        return RPCResult(encode(sorted(resources.unapproved.get_all_instance_keys(context))))


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
        flow = stage.flow
        assert isinstance(flow, OpenFlow)
        pending = await until_asked(stage)
        marks = decode(await stage.client.invoke_rpc(flow.unapproved_rpc, "s"))
        assert marks == [pending.interrupt_id]
        await stage.sessions.answer_question("s", pending.interrupt_id, "this")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert decode(await stage.client.invoke_rpc(flow.unapproved_rpc, "s")) == []


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
