"""What the client refuses, reports and waits for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any

import pytest

from core.conftest import TURN_S, Stages
from core.scripted_runner import Answer, Call, ScriptedRunner
from dex_agents import (
    AgentSessionClient,
    AgentSessionFlow,
    AgentSessionOptions,
    DeferredToolExecution,
    InvalidInputError,
    SessionAlreadyExistsError,
    SessionClosedError,
    SessionNotFoundError,
    SessionUnavailableError,
    TurnWaitTimeoutError,
)


async def test_an_engine_that_is_away_is_named(offline: AgentSessionClient) -> None:
    with pytest.raises(SessionUnavailableError, match=r"the engine at 127.0.0.1:1 .* could not"):
        await offline.get_agent_snapshot("s")


async def test_a_session_that_is_not_there(stages: Stages) -> None:
    async with stages.play([]) as stage:
        for call in (
            stage.sessions.send_user_message("none", "hi"),
            stage.sessions.get_agent_snapshot("none"),
            stage.sessions.resolve_interrupt("none", "i", approved=True),
            stage.sessions.list_messages("none"),
            stage.sessions.wait_for_turn("none", 1, timeout_s=5),
            stage.sessions.wait_until_settled("none", turns_done=1, timeout_s=5),
            anext(stage.sessions.read_events("none")),
        ):
            with pytest.raises(SessionNotFoundError, match="start_session"):
                await call


async def test_a_stopped_session_can_be_read_and_takes_nothing(stages: Stages) -> None:
    async with stages.play(["done"]) as stage:
        await stage.sessions.start_session("s", "hi")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        await stage.client.stop_flow("s")
        snapshot = await stage.sessions.get_agent_snapshot("s")
        assert snapshot.status == "closed"
        assert snapshot.last_turn is not None and snapshot.last_turn.final_text == "done"
        page = await stage.sessions.list_messages("s")
        assert [message.text for message in page.messages] == ["hi", "done"]
        for call in (
            stage.sessions.send_user_message("s", "more"),
            stage.sessions.wait_for_turn("s", 2, timeout_s=5),
            stage.sessions.resolve_interrupt("s", "t1.1.0", approved=True),
        ):
            with pytest.raises(SessionClosedError, match="closed"):
                await call


async def test_no_call_touches_a_session_of_another_flow_type(stages: Stages) -> None:
    async with stages.play(["done"], flow_type="Mine") as mine:
        await mine.sessions.start_session("s", "hi")
        before = await mine.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        async with stages.play([], flow_type="Theirs") as theirs:
            used = theirs.sessions
            calls: dict[str, Awaitable[Any]] = {
                "answer_question": used.answer_question("s", "t1.1.0", 1),
                "cancel_turn": used.cancel_turn("s"),
                "close_session": used.close_session("s"),
                "fork_session": used.fork_session("s", "new"),
                "get_agent_snapshot": used.get_agent_snapshot("s"),
                "get_message_turn": used.get_message_turn("s", "m"),
                "list_messages": used.list_messages("s"),
                "provide_credential": used.provide_credential("s", "t1.1.0", "reference"),
                "read_events": anext(used.read_events("s")),
                "resolve_interrupt": used.resolve_interrupt("s", "t1.1.0", approved=True),
                "rewind": used.rewind("s", "t1"),
                "send_user_message": used.send_user_message("s", "hi"),
                "steer_user_message": used.steer_user_message("s", "hi"),
                "wait_for_turn": used.wait_for_turn("s", 1, timeout_s=TURN_S),
                "wait_until_settled": used.wait_until_settled("s", turns_done=1, timeout_s=TURN_S),
            }
            for name, call in calls.items():
                with pytest.raises(InvalidInputError) as raised:
                    await call
                assert str(raised.value) == (
                    "session 's' is one of Flow type 'Mine', this client is for 'Theirs'; build the "
                    "client with the session's Flow"
                ), name
            with pytest.raises(SessionAlreadyExistsError):
                await used.start_session("s", "hi")
        assert await mine.sessions.get_agent_snapshot("s") == before
        tested = {*calls, "start_session", "put_image"}
        assert tested >= {name for name in dir(AgentSessionClient) if not name.startswith("_")}


async def test_a_client_made_without_the_flow_says_how_to_make_it(stages: Stages) -> None:
    async with stages.play(["done"], flow_type="Known") as stage:
        await stage.sessions.start_session("s", "hi")
        same, other = (
            AgentSessionClient(stage.client, AgentSessionFlow(ScriptedRunner([]), flow_type=name))
            for name in ("Known", "Other")
        )
        for name, call in (
            ("Known", same.start_session("new", "hi")),
            ("Known", same.send_user_message("s", "hi")),
            ("Known", same.get_agent_snapshot("s")),
            ("Known", same.wait_for_turn("s", 1, timeout_s=TURN_S)),
            ("Known", anext(same.read_events("s"))),
            ("Other", other.start_session("new", "hi")),
        ):
            with pytest.raises(InvalidInputError) as raised:
                await call
            assert str(raised.value) == (
                f"the AsyncClient does not know this Flow of type {name!r}; make it with "
                "Registry([flow], allow_async_handlers=True) of the same flow object"
            )
        with pytest.raises(SessionNotFoundError):
            await stage.sessions.get_agent_snapshot("new")


async def test_a_wait_ends_in_time_and_says_so(stages: Stages) -> None:
    async with stages.play(["done"]) as stage:
        await stage.sessions.start_session("s", "hi")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        started = time.monotonic()
        with pytest.raises(TurnWaitTimeoutError) as raised:
            await stage.sessions.wait_for_turn("s", 3, timeout_s=0.2)
        assert str(raised.value) == (
            "session 's' did not end turn 3 in time: it is idle, 1 turns are done and no message "
            "waits, so nothing opens turn 2; send one with send_user_message; the session "
            "goes on, so wait again"
        )
        with pytest.raises(
            TurnWaitTimeoutError,
            match=r"neither ended turn 2 nor asked a person in time: .* wait again",
        ):
            await stage.sessions.wait_until_settled("s", turns_done=2, timeout_s=0.2)
        assert time.monotonic() - started < 5
        # What has happened already needs no time.
        await stage.sessions.wait_for_turn("s", 1, timeout_s=5)


async def test_a_wait_for_people_outlives_a_restart_of_the_engine(stages: Stages) -> None:
    async with stages.play([[Call("pay", approval=True)], "done"]) as stage:
        await stage.sessions.start_session("s", "hi")
        await stage.sessions.wait_until_settled("s", turns_done=1, timeout_s=TURN_S)
        await stages.engine.kill()
        waiting = asyncio.create_task(
            stage.sessions.wait_until_settled("s", turns_done=1, timeout_s=TURN_S)
        )
        await stages.engine.restart()
        assert len((await waiting).pending_interrupts) == 1
        await stages.engine.kill()
        with pytest.raises(SessionUnavailableError):
            await stage.sessions.wait_until_settled("s", turns_done=1, timeout_s=0.5)


async def test_an_accepted_message_never_looks_idle(stages: Stages) -> None:
    async with stages.play([str(number) for number in range(30)]) as stage:
        await stage.sessions.start_session("s", "hi")
        assert (await stage.sessions.get_agent_snapshot("s")).turns_done in (0, 1)
        for turn in range(2, 30):
            await stage.sessions.send_user_message("s", "more")
            snapshot = await stage.sessions.get_agent_snapshot("s")
            assert snapshot.status == "running" or snapshot.turns_done == turn
            await stage.sessions.wait_for_turn("s", turn, timeout_s=TURN_S)


async def test_more_messages_than_may_wait_are_refused(stages: Stages) -> None:
    may_end, is_running = asyncio.Event(), asyncio.Event()

    async def hold(call: DeferredToolExecution) -> Any:
        is_running.set()
        async with asyncio.timeout(30):
            await may_end.wait()

    options = AgentSessionOptions(max_queued_messages=2)
    script: list[Answer] = [[Call("hold")], "one", "two", "three"]
    async with stages.play(script, {"hold": hold}, options=options) as stage:
        await stage.sessions.start_session("s", "hi")
        async with asyncio.timeout(TURN_S):
            await is_running.wait()
        await stage.sessions.send_user_message("s", "a", message_id="a")
        await stage.sessions.send_user_message("s", "b")
        assert (await stage.sessions.get_agent_snapshot("s")).queued_messages == 2
        with pytest.raises(InvalidInputError, match="no more are taken"):
            await stage.sessions.send_user_message("s", "c")
        # One that was taken already may be sent again, also when no more are taken.
        await stage.sessions.send_user_message("s", "a", message_id="a")
        may_end.set()
        snapshot = await stage.sessions.wait_for_turn("s", 3, timeout_s=TURN_S)
        assert (snapshot.status, snapshot.queued_messages) == ("idle", 0)


async def test_concurrent_messages_get_one_turn_each(stages: Stages) -> None:
    async with stages.play([str(number) for number in range(9)]) as stage:
        await stage.sessions.start_session("s", "m0")
        await asyncio.gather(
            *(
                stage.sessions.send_user_message("s", f"m{n}", message_id=f"id{n}")
                for n in range(1, 9)
                for _ in range(2)
            )
        )
        snapshot = await stage.sessions.wait_for_turn("s", 9, timeout_s=TURN_S)
        assert snapshot.status == "idle"
        page = await stage.sessions.list_messages("s")
        texts = [message.text for message in page.messages if message.role == "user"]
        assert sorted(texts) == [f"m{n}" for n in range(9)]


async def test_events_go_on_behind_a_token(stages: Stages) -> None:
    async with stages.play(["one", "two"]) as stage:
        await stage.sessions.start_session("s", "hi")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        async with asyncio.timeout(TURN_S):
            async for batch in stage.sessions.read_events("s"):
                if batch.events[-1].type == "turn_completed":
                    break
            await stage.sessions.send_user_message("s", "more")
            events = stage.sessions.read_events("s", resume_token=batch.resume_token)
            assert (await anext(events)).events[0].turn_id == "t2"
        with pytest.raises(InvalidInputError, match="resume_token 'bogus'"):
            await anext(stage.sessions.read_events("s", resume_token="bogus"))


async def test_events_end_with_their_session(stages: Stages) -> None:
    """Not with the long poll, which takes 50 s; what was told before can still be read."""
    async with stages.play(["one"]) as stage:
        await stage.sessions.start_session("s", "hi")
        events = stage.sessions.read_events("s")
        while (batch := await anext(events)).events[-1].type != "turn_completed":
            pass
        rest = asyncio.create_task(anext(events, None))
        await stage.sessions.close_session("s")
        async with asyncio.timeout(30):
            assert await rest is None
            told = [batch async for batch in stage.sessions.read_events("s")]
        assert told[-1] == batch


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"flow_type": " "}, "flow_type must be a printable text that is not blank"),
        ({"flow_type": "a/b"}, "flow_type must have at most 200 characters and none of"),
        ({"flow_type": "F", "options": {}}, "options must be AgentSessionOptions"),
        ({"flow_type": "F", "interrupt_deadline": timedelta(0)}, "interrupt_deadline must be"),
        ({"flow_type": "F", "event_stream_capacity_bytes": 10}, "must be at least 131072"),
    ],
)
def test_a_flow_refuses_wrong_arguments(arguments: dict[str, Any], error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        AgentSessionFlow(ScriptedRunner([]), **arguments)
    no_runner: Any = object()
    with pytest.raises(TypeError, match="runner must be an AgentFrameworkRunner"):
        AgentSessionFlow(no_runner, flow_type="F")
