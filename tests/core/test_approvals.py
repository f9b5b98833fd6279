"""Approvals: answers, deadlines, answers that come twice or late, and what a client sees."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from core.conftest import TURN_S, Stage, Stages
from core.scripted_runner import Answer, Call
from dex_agents import (
    AgentSnapshot,
    DeferredToolExecution,
    InterruptError,
    InvalidInputError,
    RequestIdReusedError,
    ToolCallStatus,
    ToolEffect,
)
from dex_agents._session.records import arguments_digest

PAY = Call("pay", ToolEffect.NON_IDEMPOTENT_WRITE, approval=True, arguments={"b": 1, "a": "ä"})
SCRIPT: list[Answer] = [[PAY], "done"]


async def pay(call: DeferredToolExecution) -> Any:
    return "paid"


async def until_asked(stage: Stage, session_id: str = "s") -> AgentSnapshot:
    await stage.sessions.start_session(session_id, "pay it")
    snapshot = await stage.sessions.wait_until_settled(session_id, turns_done=1, timeout_s=TURN_S)
    assert snapshot.status == "waiting"
    return snapshot


async def test_an_approved_call_runs_once(stages: Stages) -> None:
    async with stages.play(SCRIPT, {"pay": pay}) as stage:
        snapshot = await until_asked(stage)
        (pending,) = snapshot.pending_interrupts
        assert (pending.kind, pending.tool_name, pending.turn_id) == ("approval", "pay", "t1")
        assert list(pending.arguments.items()) == [("b", 1), ("a", "ä")]
        assert pending.arguments_digest == arguments_digest("pay", {"a": "ä", "b": 1})
        assert pending.deadline is None
        assert stage.runner.count("pay") == 0
        await stage.sessions.resolve_interrupt(
            "s",
            pending.interrupt_id,
            approved=True,
            arguments_digest=pending.arguments_digest,
        )
        snapshot = await stage.sessions.wait_until_settled("s", turns_done=1, timeout_s=TURN_S)
        assert (snapshot.status, snapshot.pending_interrupts) == ("idle", ())
        assert stage.runner.count("pay") == 1
        assert await stage.shape("s") == [
            "AwaitUserMessage",
            "RunModel",
            "AwaitToolApproval",
            "CallSingleAttemptTool",
            "ResumeTurn",
            "RunModel",
        ]


@pytest.mark.parametrize(
    ("message", "expected"),
    [("too much", "too much"), (None, "The user rejected this tool call, so it was not run.")],
)
async def test_a_rejected_call_does_not_run(
    stages: Stages, message: str | None, expected: str
) -> None:
    async with stages.play(SCRIPT, {"pay": pay}) as stage:
        (pending,) = (await until_asked(stage)).pending_interrupts
        await stage.sessions.resolve_interrupt(
            "s", pending.interrupt_id, approved=False, message=message
        )
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        (record,) = stage.runner.records(1)
        assert record.status is ToolCallStatus.REJECTED
        assert record.rejection_message == expected
        assert stage.runner.count("pay") == 0


async def test_a_deadline_rejects_and_says_so(stages: Stages) -> None:
    deadline = timedelta(seconds=1)
    async with stages.play(SCRIPT, {"pay": pay}, interrupt_deadline=deadline) as stage:
        (pending,) = (await until_asked(stage)).pending_interrupts
        assert pending.deadline is not None and pending.requested_at is not None
        assert abs(pending.deadline - pending.requested_at - deadline) < timedelta(seconds=0.5)
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        (record,) = stage.runner.records(1)
        assert record.status is ToolCallStatus.REJECTED
        assert "deadline" in record.rejection_message
        assert stage.runner.count("pay") == 0
        with pytest.raises(InterruptError, match="its deadline passed before anybody answered"):
            await stage.sessions.resolve_interrupt("s", pending.interrupt_id, approved=True)


async def test_an_answer_too_many_says_what_became_of_its_interrupt(stages: Stages) -> None:
    async with stages.play(SCRIPT, {"pay": pay}) as stage:
        sessions, resolve = stage.sessions, stage.sessions.resolve_interrupt
        (cut,) = (await until_asked(stage, "cut")).pending_interrupts
        await sessions.cancel_turn("cut")
        with pytest.raises(InterruptError) as ended:
            await resolve("cut", cut.interrupt_id, approved=True)
        (pending,) = (await until_asked(stage)).pending_interrupts
        with pytest.raises(InterruptError) as unknown:
            await resolve("s", f"{pending.interrupt_id}1", approved=True)
        await resolve("s", pending.interrupt_id, approved=True)
        await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        with pytest.raises(InterruptError) as answered:
            await resolve("s", pending.interrupt_id, approved=False)
    tail = "; pending are: none"
    asked = pending.interrupt_id
    assert str(ended.value).endswith(
        f"is not pending: its turn ended before anybody answered{tail}"
    )
    assert str(unknown.value).endswith(
        f"is not pending: this session never asked it; pending are: {asked}"
    )
    assert str(answered.value).endswith(
        "is not pending: it was answered, and an answer cannot be changed; the same call again counts "
        f"as this answer only with its answer_id{tail}"
    )


async def test_of_simultaneous_answers_one_counts(stages: Stages) -> None:
    async with stages.play(SCRIPT, {"pay": pay}) as stage:
        (pending,) = (await until_asked(stage)).pending_interrupts
        answers = await asyncio.gather(
            *(
                stage.sessions.resolve_interrupt("s", pending.interrupt_id, approved=True)
                for _ in range(5)
            ),
            return_exceptions=True,
        )
        # The same answer is refused like any other: nobody can know that it is not a second one.
        assert sum(answer is None for answer in answers) == 1
        refused = [str(answer) for answer in answers if answer is not None]
        assert all("not pending" in text or "already answered" in text for text in refused), refused
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert stage.runner.count("pay") == 1


async def test_an_answer_that_does_not_fit_changes_nothing(stages: Stages) -> None:
    async with stages.play(SCRIPT, {"pay": pay}) as stage:
        (pending,) = (await until_asked(stage)).pending_interrupts
        resolve = stage.sessions.resolve_interrupt
        with pytest.raises(InterruptError, match="other arguments"):
            await resolve("s", pending.interrupt_id, approved=True, arguments_digest="0" * 64)
        with pytest.raises(InterruptError, match="not pending"):
            await resolve("s", "t1.1.9", approved=True)
        with pytest.raises(InterruptError, match="not pending"):
            await resolve("s", "a/b", approved=True)
        with pytest.raises(InvalidInputError, match="approved must be True or False"):
            await resolve("s", pending.interrupt_id, approved="yes")  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError, match="message must not be blank"):
            await resolve("s", pending.interrupt_id, approved=False, message=" ")
        snapshot = await stage.sessions.get_agent_snapshot("s")
        assert snapshot.pending_interrupts == (pending,)
        assert stage.runner.count("pay") == 0


async def test_several_calls_wait_each_for_its_own_answer(stages: Stages) -> None:
    calls = [
        Call("pay", approval=True, arguments={"n": 0}),
        Call("pay", arguments={"n": 1}),
        Call("pay", approval=True, arguments={"n": 2}),
    ]
    async with stages.play([calls, "done"], {"pay": pay}) as stage:
        first, last = (await until_asked(stage)).pending_interrupts
        assert [first.arguments["n"], last.arguments["n"]] == [0, 2]
        await stage.sessions.resolve_interrupt("s", last.interrupt_id, approved=True)
        assert (await stage.sessions.get_agent_snapshot("s")).pending_interrupts == (first,)
        await stage.sessions.resolve_interrupt("s", first.interrupt_id, approved=False)
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert [str(r.status) for r in stage.runner.records(1)] == [
            "rejected",
            "succeeded",
            "succeeded",
        ]


async def test_an_announced_interrupt_can_be_answered(stages: Stages) -> None:
    async with stages.play(SCRIPT, {"pay": pay}) as stage:
        await stage.sessions.start_session("s", "pay it")
        types = []
        seen = set()
        async with asyncio.timeout(TURN_S):
            async for batch in stage.sessions.read_events("s"):
                for event in batch.events:
                    types.append(event.type)
                    seen.add((event.step_execution_id, event.attempt, event.seq))
                    if event.type == "interrupt_requested":
                        assert event.data["tool_name"] == "pay"
                        # No snapshot in between: what is announced must be stored already.
                        await stage.sessions.resolve_interrupt(
                            "s", event.data["interrupt_id"], approved=False
                        )
                if types[-1] == "turn_completed":
                    break
        assert types == [
            "turn_started",
            "model_call_started",
            "model_call_finished",
            "tool_call_requested",
            "interrupt_requested",
            "tool_call_finished",
            "model_call_started",
            "text_delta",
            "model_call_finished",
            "turn_completed",
        ]
        assert len(seen) == len(types)


async def test_an_id_of_another_answer_is_refused(stages: Stages) -> None:
    async with stages.play([[PAY, PAY], "done"], {"pay": pay}) as stage:
        snapshot = await until_asked(stage)
        first, second = (asked.interrupt_id for asked in snapshot.pending_interrupts)
        answer = stage.sessions.resolve_interrupt
        await answer("s", first, approved=True, answer_id="a")
        others: list[dict[str, Any]] = [
            {"approved": False},
            {"approved": True, "arguments": {"x": 1}},
        ]
        for other in others:
            with pytest.raises(RequestIdReusedError, match="'a' was used for another answer"):
                await answer("s", first, answer_id="a", **other)
        await answer("s", first, approved=True, answer_id="a")
        await answer("s", second, approved=False, answer_id="a")  # ids are those of one interrupt
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert [record.status for record in stage.runner.records(1)] == ["succeeded", "rejected"]
