"""Sessions that are closed: what is cut off, what can still be read, and that it happens once."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from dex import StopFlowOptions, StopType

from core.conftest import TURN_S, Stage, Stages
from core.crash_agent import ledger
from core.scripted_runner import Answer, Call
from core.test_cancel import Hold, look, note_of
from core.test_cancel_crashes import until_paid
from core.test_crashes import SINGLE, crash_client, start_worker
from dex_agents import (
    AgentMessage,
    ClosedSession,
    InvalidInputError,
    SessionClosedError,
    SessionNotFoundError,
    ToolEffect,
)
from dex_agents.testing import private_engine


async def assert_takes_nothing(stage: Stage, session_id: str = "s") -> None:
    sessions = stage.sessions
    for command in (
        sessions.send_user_message(session_id, "more"),
        sessions.steer_user_message(session_id, "more"),
        sessions.cancel_turn(session_id),
        sessions.resolve_interrupt(session_id, "t1.1.0", approved=True),
        sessions.wait_for_turn(session_id, 99, timeout_s=5),
        sessions.wait_until_settled(session_id, turns_done=99, timeout_s=5),
    ):
        with pytest.raises(SessionClosedError, match="closed and takes no more commands"):
            await command


async def test_an_idle_session_closes_and_stays_readable(stages: Stages) -> None:
    async with stages.play(["done"]) as stage:
        await stage.sessions.start_session("s", "hello")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        closed = await stage.sessions.close_session("s", reason="all said")
        assert closed == ClosedSession(dropped_messages=0, cancelled_turn="")
        snapshot = await stage.sessions.get_agent_snapshot("s")
        assert (snapshot.status, snapshot.close_reason) == ("closed", "all said")
        assert snapshot.last_turn is not None and snapshot.last_turn.final_text == "done"
        page = await stage.sessions.list_messages("s")
        assert [message.text for message in page.messages] == ["hello", "done"]
        await assert_takes_nothing(stage)
        assert await stage.sessions.close_session("s", reason="another") == closed
        assert (await stage.sessions.get_agent_snapshot("s")).close_reason == "all said"


async def test_an_open_turn_is_cancelled_and_what_waits_is_counted(stages: Stages) -> None:
    hold = Hold()
    calls = [
        Call("hold", ToolEffect.IDEMPOTENT_WRITE),
        Call("look", ToolEffect.NON_IDEMPOTENT_WRITE, approval=True),
    ]
    async with stages.play([calls, "done"], {"hold": hold, "look": look}) as stage:
        await stage.sessions.start_session("s", "hello")
        await hold.reached()
        for text in ("one", "two"):
            await stage.sessions.send_user_message("s", text)
        await stage.sessions.steer_user_message("s", "three")
        closed = await stage.sessions.close_session("s", reason="enough")
        assert closed == ClosedSession(dropped_messages=3, cancelled_turn="t1")
        assert hold.cancelled == 1
        snapshot = await stage.sessions.get_agent_snapshot("s")
        assert (snapshot.status, snapshot.turn_id, snapshot.turns_done) == ("closed", "", 1)
        assert (snapshot.pending_interrupts, snapshot.queued_messages) == ((), 3)
        assert snapshot.last_turn is not None and snapshot.last_turn.is_cancelled
        assert snapshot.last_turn.error == "the session was closed: enough"
        note = await note_of(stage)
        assert "hold (c0-0): outcome_unknown" in note
        assert "look (c0-1): failed: The tool did not run" in note
        await assert_takes_nothing(stage)
        assert await stage.sessions.close_session("s") == closed
        assert len(stage.runner.requests) == 1


async def test_open_approvals_end_with_the_session(stages: Stages) -> None:
    calls = [Call("look", ToolEffect.NON_IDEMPOTENT_WRITE, approval=True) for _ in range(2)]
    async with stages.play([calls, "done"], {"look": look}) as stage:
        await stage.sessions.start_session("s", "hello")
        snapshot = await stage.sessions.wait_until_settled("s", turns_done=1, timeout_s=TURN_S)
        waiting = [interrupt.interrupt_id for interrupt in snapshot.pending_interrupts]
        assert len(waiting) == 2
        closed = await stage.sessions.close_session("s")
        assert closed == ClosedSession(dropped_messages=0, cancelled_turn="t1")
        snapshot = await stage.sessions.get_agent_snapshot("s")
        assert (snapshot.status, snapshot.pending_interrupts) == ("closed", ())
        for interrupt_id in waiting:
            with pytest.raises(SessionClosedError, match="closed and takes no more commands"):
                await stage.sessions.resolve_interrupt("s", interrupt_id, approved=True)
        assert stage.runner.count("look") == 0
        page = await stage.sessions.list_messages("s")
        assert page.messages[0].text == "hello"


async def test_of_many_closes_one_has_an_effect(stages: Stages) -> None:
    async with stages.play(["done"]) as stage:
        hold = stage.runner.before_answer = Hold()
        await stage.sessions.start_session("s", "hello")
        await hold.reached()
        answers = await asyncio.gather(
            *(stage.sessions.close_session("s") for _ in range(5)),
            *(stage.sessions.cancel_turn("s") for _ in range(3)),
            return_exceptions=True,
        )
        assert all(answer == answers[0] for answer in answers[:5]), answers
        assert isinstance(answers[0], ClosedSession)
        for answer in answers[5:]:
            assert isinstance(answer, bool | SessionClosedError), answer
        snapshot = await stage.sessions.get_agent_snapshot("s")
        assert (snapshot.status, snapshot.turns_done) == ("closed", 1)
        page = await stage.sessions.list_messages("s")
        assert [message.sequence for message in page.messages] == [0, 1]


async def test_every_message_is_taken_dropped_or_refused(stages: Stages) -> None:
    async with stages.play([str(n) for n in range(2_000)]) as stage:
        await stage.sessions.start_session("s", "m0")
        accepted = 0

        async def send_until_closed(sender: int) -> None:
            nonlocal accepted
            for number in range(400):
                try:
                    await stage.sessions.send_user_message("s", f"m{sender}.{number}")
                    accepted += 1
                except InvalidInputError as error:
                    if "wait for their turn" not in str(error):
                        raise
                except SessionClosedError:
                    return
            raise AssertionError("the session was never closed")

        senders = [asyncio.create_task(send_until_closed(n)) for n in range(6)]
        await stage.sessions.wait_for_turn("s", 5, timeout_s=TURN_S)
        closed = await stage.sessions.close_session("s")
        await asyncio.gather(*senders)
        page = await stage.sessions.list_messages("s", turns=100)
        turns = {message.turn_id for message in page.messages}
        assert page.next_before_turn is None
        assert len(turns) - 1 + closed.dropped_messages == accepted
        assert closed == await stage.sessions.close_session("s")


async def test_a_runner_that_is_broken_keeps_no_session_open(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stages.play(["done"]) as stage:
        hold = stage.runner.before_answer = Hold()
        await stage.sessions.start_session("s", "hello")
        await hold.reached()

        def fail(text: str) -> AgentMessage:
            raise OSError("broken")

        monkeypatch.setattr(stage.runner, "build_user_message", fail)
        closed = await stage.sessions.close_session("s")
        assert closed.cancelled_turn == "t1"
        page = await stage.sessions.list_messages("s")
        assert [message.text for message in page.messages] == ["hello"]


async def test_a_first_message_without_a_turn_is_dropped(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stages.play(["done"]) as stage:
        failed = asyncio.Event()

        def fail(text: str) -> AgentMessage:
            failed.set()
            raise OSError("broken")

        monkeypatch.setattr(stage.runner, "build_user_message", fail)
        await stage.sessions.start_session("s", "hello")
        async with asyncio.timeout(TURN_S):
            await failed.wait()
        # The Step that opens the turn is between two attempts and holds its lock all the while.
        closed = await stage.sessions.close_session("s")
        assert closed == ClosedSession(dropped_messages=1, cancelled_turn="")


async def test_a_stopped_session_is_closed_already(stages: Stages) -> None:
    script: list[Answer] = ["done"]
    async with stages.play(script) as stage:
        await stage.sessions.start_session("s", "hello")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        await stage.client.stop_flow("s")
        assert await stage.sessions.close_session("s") == ClosedSession(0, "")
        assert (await stage.sessions.get_agent_snapshot("s")).close_reason == ""


@pytest.mark.parametrize("end", ["failed", "canceled", "terminated", "timed out"])
async def test_open_approvals_end_with_whatever_ends_the_flow(
    stages: Stages, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [Call("look", ToolEffect.NON_IDEMPOTENT_WRITE, approval=True)]
    async with stages.play([calls, "done"], {"look": look}) as stage:
        if end == "timed out":
            start: Any = stage.client.start_flow

            async def start_with_limit(*given: Any) -> str:
                *rest, options = given
                limited = replace(options, timeout=timedelta(seconds=2))
                return str(await start(*rest, limited))

            monkeypatch.setattr(stage.client, "start_flow", start_with_limit)
        await stage.sessions.start_session("s", "hello")
        snapshot = await stage.sessions.wait_until_settled("s", turns_done=1, timeout_s=TURN_S)
        (waiting,) = snapshot.pending_interrupts
        if end != "timed out":
            kinds = {"failed": StopType.FAIL, "canceled": StopType.CANCEL}
            how = StopFlowOptions(kinds.get(end, StopType.TERMINATE), "enough")
            await stage.client.stop_flow("s", how)
        with pytest.raises(SessionClosedError):
            await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        snapshot = await stage.sessions.get_agent_snapshot("s")
        assert (snapshot.status, snapshot.pending_interrupts) == ("closed", ())
        with pytest.raises(SessionClosedError):
            await stage.sessions.resolve_interrupt("s", waiting.interrupt_id, approved=True)
        assert stage.runner.count("look") == 0
        # Nothing of it is in the way of who cleans up.
        status = "failed" if end == "timed out" else end
        assert (await stage.client.describe_flow("s")).status.value == status
        listed = await stage.client.search_flows(f"FlowType = '{stage.flow.get_flow_type()}'", 10)
        assert [(flow.flow_id, flow.status.value) for flow in listed.flows] == [("s", status)]
        assert (await stage.sessions.list_messages("s")).messages == ()


async def test_wrong_uses_have_names(stages: Stages) -> None:
    async with stages.play([]) as stage:
        wrong: Any = 7
        with pytest.raises(InvalidInputError, match="reason must be a str, got int"):
            await stage.sessions.close_session("s", reason=wrong)
        with pytest.raises(InvalidInputError, match="session_id must be a str, got int"):
            await stage.sessions.close_session(wrong)
        with pytest.raises(SessionNotFoundError, match="no session 'none'"):
            await stage.sessions.close_session("none")


async def test_a_worker_that_dies_while_it_closes_a_session(tmp_path: Path) -> None:
    async with (
        private_engine(tmp_path / "engine.db") as engine,
        crash_client(engine, tmp_path) as sessions,
    ):
        first = await start_worker(engine, tmp_path, ("close.before",))
        await sessions.start_session("s", f"{SINGLE} hang")
        await until_paid(tmp_path)
        await sessions.send_user_message("s", "read")
        closing = asyncio.create_task(sessions.close_session("s"))
        assert await first.wait() == -signal.SIGKILL
        second = await start_worker(engine, tmp_path)
        closed = await closing
        assert closed == ClosedSession(dropped_messages=1, cancelled_turn="t1")
        assert await sessions.close_session("s") == closed
        page = await sessions.list_messages("s")
        assert "pay (c): outcome_unknown" in page.messages[-1].text
        assert ledger(tmp_path).count("paid") == 1
        assert await second.stop() == 0
