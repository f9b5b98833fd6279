"""Calls that are approved with other arguments than the model's."""

from __future__ import annotations

from typing import Any

import pytest

from core.conftest import TURN_S, Stage, Stages
from core.scripted_runner import Answer, Call
from dex_agents import (
    DeferredToolExecution,
    InterruptError,
    InvalidInputError,
    PendingInterrupt,
    ToolCallStatus,
    ToolEffect,
    ToolExecutionError,
)

ASKED = {"amount": 900, "to": "ä"}
EDITED = {"to": "ö", "amount": 90}
PAY = Call("pay", ToolEffect.NON_IDEMPOTENT_WRITE, approval=True, arguments=ASKED)
SCRIPT: list[Answer] = [[PAY], "done"]


async def pay(call: DeferredToolExecution) -> Any:
    if call.arguments.get("amount") == 0:
        raise ToolExecutionError("nothing to pay")
    return "paid"


async def until_asked(stage: Stage) -> PendingInterrupt:
    await stage.sessions.start_session("s", "pay it")
    snapshot = await stage.sessions.wait_until_settled("s", turns_done=1, timeout_s=TURN_S)
    (pending,) = snapshot.pending_interrupts
    return pending


async def test_the_tool_runs_with_the_edited_ones_and_the_model_sees_both(stages: Stages) -> None:
    async with stages.play(SCRIPT, {"pay": pay}) as stage:
        pending = await until_asked(stage)
        await stage.sessions.resolve_interrupt(
            "s",
            pending.interrupt_id,
            approved=True,
            arguments=EDITED,
            arguments_digest=pending.arguments_digest,
        )
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        (execution,) = stage.runner.executions
        assert list(execution.arguments.items()) == list(EDITED.items())
        assert execution.idempotency_key == "s/t1/c0-0"
        (record,) = stage.runner.records(1)
        assert (record.status, record.output) == (ToolCallStatus.SUCCEEDED, "paid")
        assert record.edited_arguments == EDITED
        async for batch in stage.sessions.read_events("s"):
            events = {event.type: event for event in batch.events}
            if started := events.get("tool_call_started"):
                assert started.data["arguments"] == EDITED
                break


async def test_a_failure_keeps_them_too(stages: Stages) -> None:
    async with stages.play(SCRIPT, {"pay": pay}) as stage:
        pending = await until_asked(stage)
        await stage.sessions.resolve_interrupt(
            "s", pending.interrupt_id, approved=True, arguments={"amount": 0}
        )
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        (record,) = stage.runner.records(1)
        assert (record.status, record.error) == (ToolCallStatus.FAILED, "nothing to pay")
        assert record.edited_arguments == {"amount": 0}


async def test_no_arguments_at_all_are_an_edit_too(stages: Stages) -> None:
    async with stages.play(SCRIPT, {"pay": pay}) as stage:
        pending = await until_asked(stage)
        await stage.sessions.resolve_interrupt(
            "s", pending.interrupt_id, approved=True, arguments={}
        )
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert stage.runner.executions[0].arguments == {}
        assert stage.runner.records(1)[0].edited_arguments == {}


async def test_without_an_edit_nothing_is_said(stages: Stages) -> None:
    async with stages.play(SCRIPT, {"pay": pay}) as stage:
        pending = await until_asked(stage)
        await stage.sessions.resolve_interrupt("s", pending.interrupt_id, approved=True)
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert stage.runner.executions[0].arguments == ASKED
        assert stage.runner.records(1)[0].edited_arguments is None


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([1], "arguments must be a mapping of argument names to JSON values, got list"),
        ("{}", "got str"),
        ({1: 2}, "arguments has the name 1; use str names"),
        ({"a": object()}, r"arguments\['a'\] has the type object; use str"),
        ({"a": float("nan")}, r"arguments\['a'\] is nan; use None or a text"),
        ({"a": "x" * 65_536}, "take 65544 bytes as JSON, at most 65536 are taken; reject the call"),
    ],
)
async def test_wrong_arguments_change_nothing(stages: Stages, arguments: Any, text: str) -> None:
    async with stages.play(SCRIPT, {"pay": pay}) as stage:
        pending = await until_asked(stage)
        resolve = stage.sessions.resolve_interrupt
        with pytest.raises(InvalidInputError, match=text):
            await resolve("s", pending.interrupt_id, approved=True, arguments=arguments)
        snapshot = await stage.sessions.get_agent_snapshot("s")
        assert snapshot.pending_interrupts == (pending,)


async def test_an_edit_fits_an_approval_of_what_was_shown(stages: Stages) -> None:
    async with stages.play(SCRIPT, {"pay": pay}) as stage:
        pending = await until_asked(stage)
        resolve: Any = stage.sessions.resolve_interrupt
        with pytest.raises(InvalidInputError, match="arguments belong to an approval"):
            await resolve("s", pending.interrupt_id, approved=False, arguments={})
        with pytest.raises(
            InvalidInputError, match="arguments_digest must be 64 hexadecimal digits, got 7"
        ):
            await resolve("s", pending.interrupt_id, approved=True, arguments_digest=7)
        with pytest.raises(InterruptError, match="asks for other arguments"):
            await resolve(
                "s",
                pending.interrupt_id,
                approved=True,
                arguments=EDITED,
                arguments_digest="0" * 64,
            )
        await resolve("s", pending.interrupt_id, approved=True, arguments=EDITED)
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert stage.runner.count("pay") == 1
