"""Turns of one session: their Steps, their order, what fails and how it goes on."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from core.conftest import TURN_S, Stages
from core.scripted_runner import Answer, Call, Tool
from dex_agents import (
    TOOL_CALL_NOT_RUN_ERROR_PREFIX,
    AgentEvent,
    AgentSessionOptions,
    AgentTurnError,
    DeferredToolExecution,
    ModelCallError,
    RunModelRequest,
    SessionAlreadyExistsError,
    ToolCallStatus,
    ToolEffect,
    ToolExecutionError,
)
from dex_agents.session_graph import render_session_flow_graph
from dex_agents.testing import read_step_history

READ_TURN = [
    "AwaitUserMessage",
    "RunModel",
    "CallTool",
    "ResumeTurn",
    "RunModel",
]
QUICK = AgentSessionOptions(model_attempts=2)


async def look(call: DeferredToolExecution) -> Any:
    return {"seen": call.arguments}


async def test_steps_of_a_turn_that_reads_and_answers(stages: Stages) -> None:
    async with stages.play([[Call("look")], "done"], {"look": look}) as stage:
        await stage.sessions.start_session("s", "hello")
        snapshot = await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert await stage.shape("s") == READ_TURN
        assert snapshot.status == "idle"
        assert snapshot.last_turn is not None
        assert snapshot.last_turn.final_text == "done"
        assert (snapshot.usage.input_tokens, snapshot.usage.model_calls) == (6, 2)
        page = await stage.sessions.list_messages("s")
        assert [m.text for m in page.messages] == ["hello", "", "succeeded", "done"]
        assert [m.sequence for m in page.messages] == [0, 1, 2, 3]


async def test_calls_of_one_response_run_at_the_same_time(stages: Stages) -> None:
    barrier = asyncio.Barrier(3)

    async def meet(call: DeferredToolExecution) -> Any:
        async with asyncio.timeout(20):
            await barrier.wait()
        return "met"

    async with stages.play([[Call("meet")] * 3, "done"], {"meet": meet}) as stage:
        await stage.sessions.start_session("s", "hello")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert (await stage.shape("s")).count("CallTool") == 3
        assert [r.status for r in stage.runner.records(1)] == [ToolCallStatus.SUCCEEDED] * 3


async def test_records_come_in_the_model_s_order_whatever_ends_first(stages: Stages) -> None:
    ended = [asyncio.Event() for _ in range(4)]
    ended[3].set()

    async def reverse(call: DeferredToolExecution) -> Any:
        mine = call.arguments["n"]
        async with asyncio.timeout(20):
            await ended[mine + 1].wait()
        ended[mine].set()
        return mine

    calls = [Call("reverse", arguments={"n": n}) for n in range(3)]
    async with stages.play([calls, "done"], {"reverse": reverse}) as stage:
        await stage.sessions.start_session("s", "hello")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert [r.output for r in stage.runner.records(1)] == [0, 1, 2]


async def test_calls_of_one_response_have_attempts_routes_and_history_of_their_own(
    stages: Stages,
) -> None:
    async def fails_once(call: DeferredToolExecution) -> Any:
        if call.attempt == 1:
            raise RuntimeError("not yet")
        return "paid"

    async def fails(_: DeferredToolExecution) -> Any:
        raise RuntimeError("gone")

    calls = [
        Call("again", ToolEffect.IDEMPOTENT_WRITE),
        Call("once", ToolEffect.NON_IDEMPOTENT_WRITE),
    ]
    tools: dict[str, Tool] = {"again": fails_once, "once": fails}
    async with stages.play([calls, "done"], tools) as stage:
        await stage.sessions.start_session("s", "hello")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        rows = await read_step_history(stage.engine.address, "s")
        statuses = [record.status for record in stage.runner.records(1)]
    assert statuses == [ToolCallStatus.SUCCEEDED, ToolCallStatus.OUTCOME_UNKNOWN]
    ran = {
        row.step_type: (row.attempts, row.outcome)
        for row in rows
        if row.method == "execute" and row.step_type in ("CallTool", "CallSingleAttemptTool")
    }
    assert ran == {"CallTool": (2, "completed"), "CallSingleAttemptTool": (1, "failed")}
    graph = json.loads(render_session_flow_graph("Support"))
    edges = {
        (edge["from"], edge["to"])
        for edge in graph["edges"]
        if edge["kind"] == "failure_transition"
    }
    assert {(f"step:{name}", "step:RecordToolOutcome") for name in ran} <= edges


@pytest.mark.parametrize(
    ("effect", "failures", "status", "executions"),
    [
        (ToolEffect.READ, 1, ToolCallStatus.SUCCEEDED, 2),
        (ToolEffect.READ, 2, ToolCallStatus.SUCCEEDED, 3),
        (ToolEffect.READ, 3, ToolCallStatus.FAILED, 3),
        (ToolEffect.IDEMPOTENT_WRITE, 2, ToolCallStatus.SUCCEEDED, 3),
        (ToolEffect.IDEMPOTENT_WRITE, 3, ToolCallStatus.OUTCOME_UNKNOWN, 3),
        (ToolEffect.NON_IDEMPOTENT_WRITE, 1, ToolCallStatus.OUTCOME_UNKNOWN, 1),
        (ToolEffect.UNCLASSIFIED, 1, ToolCallStatus.OUTCOME_UNKNOWN, 1),
    ],
)
async def test_attempts_by_effect(
    stages: Stages, effect: ToolEffect, failures: int, status: ToolCallStatus, executions: int
) -> None:
    async def flaky(call: DeferredToolExecution) -> Any:
        if call.attempt <= failures:
            raise RuntimeError(f"failure {call.attempt}")
        return "fine"

    async with stages.play([[Call("flaky", effect)], "done"], {"flaky": flaky}) as stage:
        await stage.sessions.start_session("s", "hello")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        (record,) = stage.runner.records(1)
        assert record.status is status
        assert stage.runner.count("flaky") == executions
        assert {call.idempotency_key for call in stage.runner.executions} == {"s/t1/c0-0"}
        if status is not ToolCallStatus.SUCCEEDED:
            assert record.error == f"RuntimeError: failure {failures}"
        is_single = effect.maximum_attempts == 1
        assert ("CallSingleAttemptTool" in await stage.shape("s")) is is_single


@pytest.mark.parametrize("effect", list(ToolEffect))
async def test_a_tool_s_own_failure_is_recorded_at_once(stages: Stages, effect: ToolEffect) -> None:
    async def refuse(call: DeferredToolExecution) -> Any:
        raise ToolExecutionError("no such order")

    async with stages.play([[Call("refuse", effect)], "done"], {"refuse": refuse}) as stage:
        await stage.sessions.start_session("s", "hello")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        (record,) = stage.runner.records(1)
        assert (record.status, record.error) == (ToolCallStatus.FAILED, "no such order")
        assert stage.runner.count("refuse") == 1


async def test_a_tool_that_is_not_there_is_recorded_as_not_run(stages: Stages) -> None:
    async with stages.play([[Call("gone", ToolEffect.UNCLASSIFIED)], "done"]) as stage:
        await stage.sessions.start_session("s", "hello")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        (record,) = stage.runner.records(1)
        assert record.status is ToolCallStatus.FAILED
        assert record.not_run
        assert record.error == f"{TOOL_CALL_NOT_RUN_ERROR_PREFIX}: there is no tool gone"


async def test_a_reused_call_id_gets_a_key_of_its_own(stages: Stages) -> None:
    script: list[Answer] = [[Call("look", call_id="same")], [Call("look", call_id="same")], "done"]
    async with stages.play(script, {"look": look}) as stage:
        await stage.sessions.start_session("s", "hello")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        keys = [call.idempotency_key for call in stage.runner.executions]
        assert keys == ["s/t1/same", "s/t1/same#2"]


async def test_a_model_failure_is_retried(stages: Stages) -> None:
    script: list[Answer] = [ModelCallError("busy", retry_after_s=0.2), RuntimeError("odd"), "done"]
    async with stages.play(script) as stage:
        await stage.sessions.start_session("s", "hello")
        snapshot = await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert snapshot.last_turn is not None
        assert snapshot.last_turn.final_text == "done"
        assert [request.attempt for request in stage.runner.requests] == [1, 2, 3]
        assert len({request.step_execution_id for request in stage.runner.requests}) == 1


async def test_a_failed_turn_leaves_a_note_and_the_session_goes_on(stages: Stages) -> None:
    script: list[Answer] = [
        [Call("pay", ToolEffect.NON_IDEMPOTENT_WRITE), Call("look")],
        ModelCallError("down"),
        ModelCallError("still down"),
        "answered",
    ]

    async def pay(call: DeferredToolExecution) -> Any:
        return "paid 7"

    async with stages.play(script, {"pay": pay, "look": look}, options=QUICK) as stage:
        await stage.sessions.start_session("s", "pay it")
        snapshot = await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert snapshot.last_turn is not None
        assert snapshot.last_turn.error == "still down"
        assert snapshot.status == "idle"
        await stage.sessions.send_user_message("s", "and now?")
        await stage.sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
        history = [message.text for message in stage.runner.requests[-1].history]
        assert history[0] == "pay it"
        assert 'pay (c0-0): succeeded: "paid 7"' in history[1]
        assert "look (c0-1): succeeded" in history[1]
        assert "still down" in history[1]
        assert stage.runner.count("pay") == 1


async def test_a_turn_error_fails_the_turn_without_a_retry(stages: Stages) -> None:
    async with stages.play([AgentTurnError("bad request"), "fine"]) as stage:
        await stage.sessions.start_session("s", "hello")
        snapshot = await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert snapshot.last_turn is not None
        assert snapshot.last_turn.error == "bad request"
        assert len(stage.runner.requests) == 1
        await stage.sessions.send_user_message("s", "again")
        snapshot = await stage.sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
        assert snapshot.last_turn is not None
        assert snapshot.last_turn.final_text == "fine"


async def test_queued_messages_get_one_turn_each_in_order(stages: Stages) -> None:
    gate = asyncio.Event()

    async def wait(call: DeferredToolExecution) -> Any:
        async with asyncio.timeout(30):
            await gate.wait()
        return "ok"

    script: list[Answer] = [[Call("wait")], "one", "two", "three"]
    async with stages.play(script, {"wait": wait}) as stage:
        await stage.sessions.start_session("s", "m1")
        await stage.sessions.send_user_message("s", "m2")
        await stage.sessions.send_user_message("s", "m3", message_id="mine")
        await stage.sessions.send_user_message("s", "m3", message_id="mine")
        gate.set()
        await stage.sessions.wait_for_turn("s", 3, timeout_s=TURN_S)
        page = await stage.sessions.list_messages("s")
        assert [m.text for m in page.messages if m.role == "user"] == ["m1", "m2", "m3"]
        assert {m.turn_id for m in page.messages} == {"t1", "t2", "t3"}
        assert len(stage.runner.requests) == 4


async def test_many_messages_behind_a_turn_keep_their_order(stages: Stages) -> None:
    count = 180
    may_end, is_running = asyncio.Event(), asyncio.Event()

    async def hold(request: RunModelRequest) -> None:
        is_running.set()
        async with asyncio.timeout(TURN_S):
            await may_end.wait()

    options = AgentSessionOptions(max_queued_messages=count)
    script = [str(number) for number in range(count + 1)]
    async with stages.play(script, options=options) as stage:
        stage.runner.before_answer = hold
        await stage.sessions.start_session("s", "m0")
        async with asyncio.timeout(TURN_S):
            await is_running.wait()
        for number in range(1, count + 1):
            await stage.sessions.send_user_message("s", f"m{number}")
        assert (await stage.sessions.get_agent_snapshot("s")).queued_messages == count
        may_end.set()
        snapshot = await stage.sessions.wait_for_turn("s", count + 1, timeout_s=TURN_S)
        assert (snapshot.status, snapshot.queued_messages) == ("idle", 0)
        asked = [request.user_message["text"] for request in stage.runner.requests]
        assert asked == [f"m{number}" for number in range(count + 1)]


async def test_pages_of_messages(stages: Stages) -> None:
    async with stages.play(["a", "b", "c"]) as stage:
        await stage.sessions.start_session("s", "m1")
        for number, text in ((1, "m2"), (2, "m3")):
            await stage.sessions.wait_for_turn("s", number, timeout_s=TURN_S)
            await stage.sessions.send_user_message("s", text)
        await stage.sessions.wait_for_turn("s", 3, timeout_s=TURN_S)
        newest = await stage.sessions.list_messages("s", turns=2)
        assert [m.text for m in newest.messages] == ["m2", "b", "m3", "c"]
        assert newest.next_before_turn == 2
        rest = await stage.sessions.list_messages("s", before_turn=2, turns=2)
        assert [m.text for m in rest.messages] == ["m1", "a"]
        assert rest.next_before_turn is None


async def test_a_repeated_start_changes_nothing(stages: Stages) -> None:
    async with stages.play(["done"]) as stage:
        await stage.sessions.start_session("s", "hello")
        await stage.sessions.start_session("s", "hello")
        with pytest.raises(SessionAlreadyExistsError, match="with another message"):
            await stage.sessions.start_session("s", "other")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert len(stage.runner.requests) == 1


async def test_live_events_carry_turn_step_and_attempt(stages: Stages) -> None:
    script: list[Answer] = [[Call("look")], ModelCallError("once"), "done"]
    async with stages.play(script, {"look": look}) as stage:
        await stage.sessions.start_session("s", "hello")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        seen: list[AgentEvent] = []
        async with asyncio.timeout(TURN_S):
            async for batch in stage.sessions.read_events("s"):
                seen += batch.events
                if seen[-1].type == "turn_completed":
                    break
        assert [event.type for event in seen] == [
            "turn_started",
            "model_call_started",
            "model_call_finished",
            "tool_call_requested",
            "tool_call_started",
            "tool_call_finished",
            "model_call_started",
            "model_call_failed",
            "model_call_started",
            "text_delta",
            "model_call_finished",
            "turn_completed",
        ]
        assert {event.turn_id for event in seen} == {"t1"}
        assert {event.step_execution_id for event in seen[6:]} == {"RunModel-2"}
        assert [event.attempt for event in seen[6:]] == [1, 1, 2, 2, 2, 2]
        assert seen[7].data == {"error": "once"}
        assert seen[2].data == {"input_tokens": 3, "output_tokens": 2, "model_calls": 1, "calls": 1}
        assert seen[3].data["tool_call_id"] == "c0-0"
        assert seen[5].data["status"] == "succeeded"
        assert seen[5].data["output"] == await look(stage.runner.executions[0])


async def test_two_sessions_do_not_hold_each_other_up(stages: Stages) -> None:
    is_hanging, may_end = asyncio.Event(), asyncio.Event()

    async def hang(call: DeferredToolExecution) -> Any:
        is_hanging.set()
        await may_end.wait()

    options = AgentSessionOptions(tool_call_timeout=timedelta(hours=3))
    script: list[Answer] = [[Call("hang")], "unused"]
    async with stages.play(script, {"hang": hang, "look": look}, options=options) as stage:
        await stage.sessions.start_session("hung", "hello")
        async with asyncio.timeout(TURN_S):
            await is_hanging.wait()
        stage.runner.script = [[Call("look")], "done"]
        await stage.sessions.start_session("other", "hello")
        snapshot = await stage.sessions.wait_for_turn("other", 1, timeout_s=5)
        assert snapshot.last_turn is not None
        assert (await stage.sessions.get_agent_snapshot("hung")).status == "running"
        may_end.set()
        await stage.sessions.wait_for_turn("hung", 1, timeout_s=TURN_S)
