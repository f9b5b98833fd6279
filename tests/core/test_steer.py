"""Messages into the open turn: who reads them, and that none is lost or read twice."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from core.conftest import TURN_S, Stage, Stages
from core.scripted_runner import Answer, Call
from core.test_cancel import Hold
from dex_agents import (
    AgentSessionOptions,
    AgentTurnError,
    InvalidInputError,
    RequestIdReusedError,
    RunModelRequest,
    SessionClosedError,
    SessionNotFoundError,
)
from dex_agents._session import flow as session_flow


async def texts_of(stage: Stage, session_id: str = "s") -> list[tuple[str, str]]:
    page = await stage.sessions.list_messages(session_id, turns=100)
    return [(m.turn_id, m.text) for m in page.messages if m.role == "user"]


def steered(request: RunModelRequest) -> list[str]:
    return [item["text"] for item in request.steering]


async def held_at_its_first_answer(stage: Stage) -> Hold:
    """The session ``s``, whose model call waits."""
    hold = stage.runner.before_answer = Hold()
    await stage.sessions.start_session("s", "hello")
    await hold.reached()
    return hold


async def test_the_next_model_call_of_the_turn_reads_it(stages: Stages) -> None:
    hold = Hold()
    async with stages.play([[Call("hold")], "done", "more"], {"hold": hold}) as stage:
        await stage.sessions.start_session("s", "hello")
        await hold.reached()
        for text in ("to the left", "no, right"):
            await stage.sessions.steer_user_message("s", text)
        assert (await stage.sessions.get_agent_snapshot("s")).queued_messages == 2
        assert hold.cancelled == 0
        hold.may_go.set()
        snapshot = await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert [steered(r) for r in stage.runner.requests] == [[], ["to the left", "no, right"]]
        assert await texts_of(stage) == [
            ("t1", "hello"),
            ("t1", "to the left"),
            ("t1", "no, right"),
        ]
        assert snapshot.queued_messages == 0
        # Their places in the queue open no turn, and the next message opens the next one.
        await stage.sessions.send_user_message("s", "next")
        snapshot = await stage.sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
        assert (snapshot.status, snapshot.turns_done) == ("idle", 2)
        assert (await texts_of(stage))[-1] == ("t2", "next")


@pytest.mark.parametrize("step_ms", [0, -3_600_000], ids=["stands still", "goes back"])
async def test_they_are_read_in_order_whatever_the_clock_does(
    stages: Stages, monkeypatch: pytest.MonkeyPatch, step_ms: int
) -> None:
    clock = itertools.count(2_000_000_000_000, step_ms)
    monkeypatch.setattr(session_flow, "now_ms", lambda: next(clock))
    sent = [f"m{number}" for number in range(6)]
    async with stages.play([[Call("hold")], "done"], {"hold": (hold := Hold())}) as stage:
        await stage.sessions.start_session("s", "hello")
        await hold.reached()
        for text in sent:
            await stage.sessions.steer_user_message("s", text)
        hold.may_go.set()
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert [steered(r) for r in stage.runner.requests] == [[], sent]


async def test_between_turns_it_opens_one(stages: Stages) -> None:
    async with stages.play(["one", "two"]) as stage:
        await stage.sessions.start_session("s", "hello")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        await stage.sessions.steer_user_message("s", "later")
        snapshot = await stage.sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
        assert snapshot.last_turn is not None and snapshot.last_turn.final_text == "two"
        assert await texts_of(stage) == [("t1", "hello"), ("t2", "later")]
        assert [steered(request) for request in stage.runner.requests] == [[], []]


@pytest.mark.parametrize("ending", ["answered", "cancelled", "failed"])
async def test_what_no_model_call_has_read_opens_the_next_turn(stages: Stages, ending: str) -> None:
    first = AgentTurnError("broken") if ending == "failed" else "one"
    async with stages.play([first, "two"]) as stage:
        hold = await held_at_its_first_answer(stage)
        await stage.sessions.steer_user_message("s", "late")
        stage.runner.before_answer = None
        if ending == "cancelled":
            stage.runner.script[0] = "two"
            assert await stage.sessions.cancel_turn("s")
        hold.may_go.set()
        snapshot = await stage.sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
        assert snapshot.last_turn is not None and snapshot.last_turn.final_text == "two"
        assert snapshot.queued_messages == 0
        texts = [text for text in await texts_of(stage) if "[session note]" not in text[1]]
        assert texts == [("t1", "hello"), ("t2", "late")]


async def test_a_turn_that_failed_with_it_opens_another(stages: Stages) -> None:
    hold = Hold()
    script: list[Answer] = [[Call("hold")], AgentTurnError("broken"), "two"]
    async with stages.play(script, {"hold": hold}) as stage:
        await stage.sessions.start_session("s", "hello")
        await hold.reached()
        await stage.sessions.steer_user_message("s", "left")
        hold.may_go.set()
        snapshot = await stage.sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
        assert snapshot.last_turn is not None and snapshot.last_turn.final_text == "two"
        assert [t for t in await texts_of(stage) if t[1] == "left"] == [("t2", "left")]


async def test_what_was_read_stays_in_a_turn_that_fails_later(stages: Stages) -> None:
    hold = Hold()
    script: list[Answer] = [[Call("hold")], [Call("hold")], AgentTurnError("broken"), "two"]
    async with stages.play(script, {"hold": hold}) as stage:
        await stage.sessions.start_session("s", "hello")
        await hold.reached()
        await stage.sessions.steer_user_message("s", "left")
        hold.may_go.set()
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert (await texts_of(stage))[:2] == [("t1", "hello"), ("t1", "left")]
        await stage.sessions.send_user_message("s", "next")
        snapshot = await stage.sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
        assert (snapshot.status, snapshot.turns_done) == ("idle", 2)
        assert (await texts_of(stage))[-1] == ("t2", "next")


async def test_a_repeated_model_call_reads_the_same(stages: Stages) -> None:
    hold = Hold()
    script: list[Answer] = [[Call("hold")], OSError("flaky"), "done"]
    async with stages.play(script, {"hold": hold}) as stage:
        await stage.sessions.start_session("s", "hello")
        await hold.reached()
        await stage.sessions.steer_user_message("s", "left")
        hold.may_go.set()
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert [steered(r) for r in stage.runner.requests] == [[], ["left"], ["left"]]
        assert await texts_of(stage) == [("t1", "hello"), ("t1", "left")]


async def test_a_runner_that_cannot_steer_loses_nothing(stages: Stages) -> None:
    hold = Hold()
    async with stages.play([[Call("hold")], "one", "two"], {"hold": hold}) as stage:
        stage.runner.takes_steering = False
        await stage.sessions.start_session("s", "hello")
        await hold.reached()
        await stage.sessions.steer_user_message("s", "left")
        hold.may_go.set()
        await stage.sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
        assert await texts_of(stage) == [("t1", "hello"), ("t2", "left")]


async def test_the_same_id_counts_once(stages: Stages) -> None:
    hold = Hold()
    async with stages.play([[Call("hold")], "one", "two"], {"hold": hold}) as stage:
        await stage.sessions.start_session("s", "hello")
        await hold.reached()
        steer = stage.sessions.steer_user_message
        await asyncio.gather(*(steer("s", "left", message_id="m") for _ in range(5)))
        hold.may_go.set()
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert await steer("s", "left", message_id="m") == "m"
        await stage.sessions.send_user_message("s", "left", message_id="m")
        await stage.sessions.send_user_message("s", "next")
        snapshot = await stage.sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
        assert (snapshot.status, snapshot.turns_done) == ("idle", 2)
        assert await texts_of(stage) == [("t1", "hello"), ("t1", "left"), ("t2", "next")]


async def steer_patiently(stage: Stage, text: str) -> None:
    """Steer, and again if too many wait."""
    async with asyncio.timeout(TURN_S):
        while True:
            try:
                await stage.sessions.steer_user_message("s", text)
                return
            except InvalidInputError as error:
                if "wait for the next model call" not in str(error):
                    raise
                await asyncio.sleep(0.01)


async def test_each_acts_once_wherever_the_turn_is(stages: Stages) -> None:
    async def quick(_: object) -> Any:
        return "ok"

    rounds: list[Answer] = [[Call("quick")] for _ in range(30)]
    script = [*rounds, *(str(n) for n in range(60))]
    async with stages.play(script, {"quick": quick}) as stage:
        await stage.sessions.start_session("s", "hello")
        for number in range(40):
            await steer_patiently(stage, f"m{number}")
            await asyncio.sleep(0.002 * (number % 3))  # meets other places of a turn
        async with asyncio.timeout(TURN_S):
            while True:
                snapshot = await stage.sessions.get_agent_snapshot("s")
                if snapshot.status == "idle":
                    break
                await stage.sessions.wait_for_turn("s", snapshot.turns_done + 1, timeout_s=TURN_S)
        texts = [text for _, text in await texts_of(stage)]
        assert texts == ["hello", *(f"m{number}" for number in range(40))]


async def test_more_than_may_wait_are_refused(stages: Stages) -> None:
    options = AgentSessionOptions(max_queued_messages=9)
    async with stages.play([str(n) for n in range(20)], options=options) as stage:
        hold = await held_at_its_first_answer(stage)
        for number in range(8):
            await stage.sessions.steer_user_message("s", f"m{number}")
        with pytest.raises(InvalidInputError, match="8 messages that wait for the next model call"):
            await stage.sessions.steer_user_message("s", "m8")
        await stage.sessions.send_user_message("s", "m8")
        with pytest.raises(InvalidInputError, match="9 messages that wait for their turn"):
            await stage.sessions.steer_user_message("s", "m9")
        hold.may_go.set()
        await stage.sessions.wait_for_turn("s", 3, timeout_s=TURN_S)
        # The first of them opened a turn of which the first model call took the others in.
        assert [turn for turn, _ in await texts_of(stage)] == ["t1", *["t2"] * 8, "t3"]


async def test_of_many_at_once_no_more_than_may_wait_are_taken(stages: Stages) -> None:
    options = AgentSessionOptions(max_queued_messages=12)
    async with stages.play([str(n) for n in range(20)], options=options) as stage:
        hold = await held_at_its_first_answer(stage)

        async def all_at_once(command: Any, letter: str) -> list[str]:
            sent = [command("s", f"{letter}{number}") for number in range(16)]
            answers = await asyncio.gather(*sent, return_exceptions=True)
            return [str(answer) for answer in answers if isinstance(answer, InvalidInputError)]

        steered_too_much = await all_at_once(stage.sessions.steer_user_message, "a")
        assert len(steered_too_much) == 16 - 8
        assert all(" has 8 messages that wait for the next model" in e for e in steered_too_much)
        sent_too_much = await all_at_once(stage.sessions.send_user_message, "b")
        assert len(sent_too_much) == 16 - 4
        assert all(" has 12 messages that wait for their turn" in e for e in sent_too_much)
        hold.may_go.set()
        await stage.sessions.wait_for_turn("s", 6, timeout_s=TURN_S)
        assert len(await texts_of(stage)) == 1 + 12


async def test_an_id_of_another_message_is_refused(stages: Stages) -> None:
    async with stages.play([str(n) for n in range(9)]) as stage:
        steer, send = stage.sessions.steer_user_message, stage.sessions.send_user_message
        hold = await held_at_its_first_answer(stage)

        async def only_as_it_was(message_id: str, text: str) -> None:
            for command in (steer, send):
                with pytest.raises(RequestIdReusedError, match=f"'{message_id}' was used for ano"):
                    await command("s", f"not {text}", message_id=message_id)
                assert await command("s", text, message_id=message_id) == message_id

        await send("s", "sent", message_id="m1")
        await only_as_it_was("m1", "sent")
        await steer("s", "steered", message_id="m2")
        await only_as_it_was("m2", "steered")
        hold.may_go.set()
        await stage.sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
        await only_as_it_was("m1", "sent")
        await only_as_it_was("m2", "steered")
        assert [text for _, text in await texts_of(stage)] == ["hello", "sent", "steered"]


async def test_wrong_uses_have_names(stages: Stages) -> None:
    async with stages.play(["done"]) as stage:
        steer: Any = stage.sessions.steer_user_message
        with pytest.raises(InvalidInputError, match="text must be a str, got NoneType"):
            await steer("s", None)
        with pytest.raises(InvalidInputError, match="text must not be blank"):
            await steer("s", " ")
        with pytest.raises(InvalidInputError, match="16385 bytes, a message into an open turn"):
            await steer("s", "x" * 16_385)
        with pytest.raises(InvalidInputError, match="message_id must be a str"):
            await steer("s", "x", message_id=3)
        with pytest.raises(SessionNotFoundError, match="no session 'none'"):
            await steer("none", "x")
        await stage.sessions.start_session("s", "hello")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        await stage.client.stop_flow("s")
        with pytest.raises(SessionClosedError, match="closed"):
            await steer("s", "x")
