"""Sessions that close by themselves when nobody writes."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

import pytest
from dex import AsyncContext, StepDecision

from core.conftest import TURN_S, Stages
from core.scripted_runner import Call
from core.test_cancel import Hold, look
from dex_agents import (
    AgentSessionOptions,
    ClosedSession,
    SessionClosedError,
    SessionUnavailableError,
    ToolEffect,
)
from dex_agents._session.steps_turn import AwaitUserMessage

IDLE = AgentSessionOptions(idle_lifetime=timedelta(seconds=1))


async def test_a_session_that_is_idle_closes(stages: Stages) -> None:
    async with stages.play(["one"], options=IDLE) as stage:
        await stage.sessions.start_session("s", "hello")
        result = await stage.client.wait_for_flow("s", timedelta(seconds=TURN_S))
        assert result.status.value == "completed"
        snapshot = await stage.sessions.get_agent_snapshot("s")
        assert (snapshot.status, snapshot.turns_done) == ("closed", 1)
        assert snapshot.close_reason == "no message of the user came within its idle lifetime"
        with pytest.raises(SessionClosedError, match="closed"):
            await stage.sessions.send_user_message("s", "late")
        assert await stage.sessions.close_session("s") == ClosedSession(0, "")


async def test_a_turn_is_not_idle_however_long_it_waits(stages: Stages) -> None:
    pay = Call("look", ToolEffect.NON_IDEMPOTENT_WRITE, approval=True)
    async with stages.play([[pay], "done"], {"look": look}, options=IDLE) as stage:
        await stage.sessions.start_session("waits", "hello")
        snapshot = await stage.sessions.wait_until_settled("waits", turns_done=1, timeout_s=TURN_S)
        # Another session that is idle has closed meanwhile: more than the lifetime has passed.
        await stage.sessions.start_session("idle", "hello")
        (other,) = (
            await stage.sessions.wait_until_settled("idle", turns_done=1, timeout_s=TURN_S)
        ).pending_interrupts
        await stage.sessions.resolve_interrupt("idle", other.interrupt_id, approved=False)
        await stage.client.wait_for_flow("idle", timedelta(seconds=TURN_S))
        (pending,) = snapshot.pending_interrupts
        await stage.sessions.resolve_interrupt("waits", pending.interrupt_id, approved=True)
        snapshot = await stage.sessions.wait_for_turn("waits", 1, timeout_s=TURN_S)
        assert snapshot.last_turn is not None and snapshot.last_turn.final_text == "done"


async def test_a_message_that_comes_with_the_end_counts(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = Hold()
    execute: Any = AwaitUserMessage.execute

    async def slow(self: AwaitUserMessage, context: AsyncContext, input: bytes) -> StepDecision:
        decision: StepDecision = await execute(self, context, input)
        if context.has_timer_fired() and not hold.is_there.is_set():
            await hold(None)  # between its decision and its commit
        return decision

    monkeypatch.setattr(AwaitUserMessage, "execute", slow)
    async with stages.play(["one", "two"], options=IDLE) as stage:
        await stage.sessions.start_session("s", "hello")
        await hold.reached()
        await stage.sessions.send_user_message("s", "just in time")
        hold.may_go.set()
        snapshot = await stage.sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
        assert snapshot.last_turn is not None and snapshot.last_turn.final_text == "two"


async def test_the_lifetime_survives_the_engine(stages: Stages) -> None:
    async with stages.play(["one"], options=IDLE) as stage:
        await stage.sessions.start_session("s", "hello")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        await stage.engine.kill()
        await stage.engine.restart()
        async with asyncio.timeout(TURN_S):
            while True:
                with contextlib.suppress(SessionUnavailableError):
                    if (await stage.sessions.get_agent_snapshot("s")).status == "closed":
                        break
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("value", [timedelta(0), timedelta(seconds=1.5), 60])
def test_a_lifetime_is_whole_seconds(value: Any) -> None:
    with pytest.raises(
        (TypeError, ValueError), match=r"AgentSessionOptions\.idle_lifetime must be"
    ):
        AgentSessionOptions(idle_lifetime=value)
