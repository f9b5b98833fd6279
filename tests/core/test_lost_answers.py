"""Commands whose own answer is lost after they were stored: the same call again acts once."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
from dex import DexServiceError, ErrorSubStatus

from core.conftest import TURN_S, Stage, Stages
from core.scripted_runner import Answer, Call, Tool
from core.test_cancel import Hold, look
from dex_agents import (
    ClosedSession,
    InterruptError,
    SessionAlreadyExistsError,
    SessionUnavailableError,
    ToolCallStatus,
    ToolEffect,
)

WRITE = ToolEffect.NON_IDEMPOTENT_WRITE
ASKS: list[Answer] = [[Call("look", WRITE, approval=True)], "done", "two", "three", "four"]


@contextlib.asynccontextmanager
async def losing_answers(stage: Stage) -> AsyncIterator[list[str]]:
    """The engine takes every command in the block, and the client never hears of it."""
    lost: list[str] = []

    def losing(name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def lose(target: Any, *args: Any, **options: Any) -> Any:
            answer = await call(target, *args, **options)
            rpc = getattr(target, "__name__", "")
            if rpc == "get_agent_snapshot_rpc":
                return answer  # it changes nothing
            lost.append(rpc or name)
            raise DexServiceError(
                grpc.StatusCode.UNAVAILABLE,
                ErrorSubStatus.UNCATEGORIZED,
                "Socket closed",
                "invoke_rpc",
                "s",
            )

        return lose

    client: Any = stage.client
    names = ("invoke_rpc", "start_flow")
    for name in names:
        setattr(client, name, losing(name, getattr(client, name)))
    try:
        yield lost
    finally:
        for name in names:
            delattr(client, name)


async def lose(stage: Stage, command: Awaitable[Any]) -> str:
    """The id that the error gives for another try."""
    async with losing_answers(stage) as lost:
        with pytest.raises(SessionUnavailableError, match="call again") as error:
            await command
    assert len(lost) == 1
    return error.value.command_id


async def until_asked(stage: Stage) -> str:
    await stage.sessions.start_session("s", "hi")
    snapshot = await stage.sessions.wait_until_settled("s", turns_done=1, timeout_s=TURN_S)
    (pending,) = snapshot.pending_interrupts
    return pending.interrupt_id


async def test_a_start(stages: Stages) -> None:
    async with stages.play(["one", "two"]) as stage:
        assert await lose(stage, stage.sessions.start_session("s", "hi")) == ""
        await stage.sessions.start_session("s", "hi")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        await stage.sessions.start_session("s", "hi")
        with pytest.raises(SessionAlreadyExistsError, match="another message"):
            await stage.sessions.start_session("s", "ho")
        page = await stage.sessions.list_messages("s")
        assert [message.text for message in page.messages] == ["hi", "one"]


async def test_a_message(stages: Stages) -> None:
    async with stages.play(["one", "two", "three"]) as stage:
        await stage.sessions.start_session("s", "hi")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        message_id = await lose(stage, stage.sessions.send_user_message("s", "more"))
        for _ in range(2):
            again = await stage.sessions.send_user_message("s", "more", message_id=message_id)
            assert again == message_id
        await stage.sessions.send_user_message("s", "last")
        await stage.sessions.wait_for_turn("s", 3, timeout_s=TURN_S)
        page = await stage.sessions.list_messages("s")
        texts = [message.text for message in page.messages]
        assert texts == ["hi", "one", "more", "two", "last", "three"]


async def test_a_message_into_the_open_turn(stages: Stages) -> None:
    hold = Hold()
    async with stages.play([[Call("hold")], "one", "two"], {"hold": hold}) as stage:
        await stage.sessions.start_session("s", "hi")
        await hold.reached()
        message_id = await lose(stage, stage.sessions.steer_user_message("s", "aside"))
        await stage.sessions.steer_user_message("s", "aside", message_id=message_id)
        hold.may_go.set()
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        await stage.sessions.steer_user_message("s", "aside", message_id=message_id)
        await stage.sessions.send_user_message("s", "more")
        await stage.sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
        page = await stage.sessions.list_messages("s")
        assert [m.text for m in page.messages if m.role == "user"] == ["hi", "aside", "more"]


async def test_an_answer(stages: Stages) -> None:
    async with stages.play(ASKS, {"look": look}) as stage:
        interrupt_id = await until_asked(stage)
        sessions, resolve = stage.sessions, stage.sessions.resolve_interrupt
        answer_id = await lose(stage, resolve("s", interrupt_id, approved=True))

        async def again() -> None:
            await resolve("s", interrupt_id, approved=True, answer_id=answer_id)

        await again()
        await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        await again()
        # Another answer is one, whatever it says, and never counts.
        for other in ({"approved": True}, {"approved": False, "answer_id": "other"}):
            with pytest.raises(InterruptError, match="is not pending: it was answered"):
                await resolve("s", interrupt_id, **other)
        await sessions.send_user_message("s", "second turn")
        await sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
        await again()
        assert stage.runner.count("look") == 1
        assert [r.status for r in stage.runner.records(1)] == [ToolCallStatus.SUCCEEDED]
        # It is not kept for ever.
        await sessions.send_user_message("s", "third turn")
        await sessions.wait_for_turn("s", 3, timeout_s=TURN_S)
        with pytest.raises(
            InterruptError,
            match="its turn has ended, and whether it was asked there is no longer kept",
        ):
            await again()


async def test_an_answer_that_nobody_has_taken_in_yet(stages: Stages) -> None:
    async with stages.play(ASKS, {"look": look}) as stage:
        interrupt_id = await until_asked(stage)
        resolve = stage.sessions.resolve_interrupt
        with pytest.raises(InterruptError):
            await resolve("s", "t9.1.0", approved=True, answer_id="a")
        await resolve("s", interrupt_id, approved=False, message="no", answer_id="a")
        await resolve("s", interrupt_id, approved=False, message="no", answer_id="a")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        (record,) = stage.runner.records(1)
        assert (record.status, record.rejection_message) == (ToolCallStatus.REJECTED, "no")


@pytest.mark.parametrize("is_named", [True, False], ids=["the turn named", "whichever is open"])
async def test_a_cancel(stages: Stages, is_named: bool) -> None:
    hold = Hold()
    async with stages.play([[Call("hold")], "one", "two"], {"hold": hold}) as stage:
        await stage.sessions.start_session("s", "hi")
        await hold.reached()
        await stage.sessions.send_user_message("s", "next")
        named = "t1" if is_named else None
        turn_id = await lose(stage, stage.sessions.cancel_turn("s", turn_id=named))
        assert turn_id == "t1"
        assert await stage.sessions.cancel_turn("s", turn_id=turn_id)
        # The turn behind it, which began meanwhile, is not the one that is meant.
        snapshot = await stage.sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
        assert await stage.sessions.cancel_turn("s", turn_id=turn_id)
        assert snapshot.last_turn is not None and snapshot.last_turn.error == ""
        assert (snapshot.turns_done, hold.cancelled) == (2, 1)


async def test_a_close_with_all_that_may_be_open(stages: Stages) -> None:
    hold = Hold()
    calls = [
        Call("hold", ToolEffect.IDEMPOTENT_WRITE),
        Call("look", WRITE, approval=True),
        Call("look", approval=True),
    ]
    tools: dict[str, Tool] = {"hold": hold, "look": look}
    async with stages.play([calls, "never"], tools) as stage:
        await stage.sessions.start_session("s", "hi")
        await hold.reached()
        await stage.sessions.send_user_message("s", "waits")
        await stage.sessions.steer_user_message("s", "aside")
        assert await lose(stage, stage.sessions.close_session("s", reason="enough")) == ""
        expected = ClosedSession(dropped_messages=2, cancelled_turn="t1")
        for _ in range(2):
            assert await stage.sessions.close_session("s", reason="other words") == expected
        snapshot = await stage.sessions.get_agent_snapshot("s")
        assert (snapshot.status, snapshot.close_reason) == ("closed", "enough")
        assert snapshot.pending_interrupts == ()
        assert (stage.runner.count("look"), len(stage.runner.requests)) == (0, 1)
        page = await stage.sessions.list_messages("s")
        assert [message.role for message in page.messages] == ["user", "user"]
