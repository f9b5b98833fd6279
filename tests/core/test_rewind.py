"""Going back in a session: what counts afterwards, what is refused, and that it happens once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

import pytest
from dex import AsyncContext, RPCInvokeOptions, Wait

from core.conftest import TURN_S, Stage, Stages
from core.scripted_runner import Answer, Call, ScriptedRunner
from core.test_cancel import Hold
from dex_agents import (
    AgentMessage,
    AgentTurnError,
    FinishedTurn,
    InvalidInputError,
    Json,
    NewerTurnError,
    RequestIdReusedError,
    RewoundSession,
    SessionClosedError,
    SessionNotFoundError,
    ToolEffect,
    TurnOpenError,
    TurnTargetError,
)
from dex_agents._session import resources
from dex_agents._session.encoding import decode, encode
from dex_agents._session.records import message_digest
from dex_agents._session.steps_turn import AwaitUserMessage


async def talk(stage: Stage, texts: Sequence[str], session_id: str = "s") -> None:
    """One turn after the other, the first of them the session's first."""
    await stage.sessions.start_session(session_id, texts[0])
    await stage.sessions.wait_for_turn(session_id, 1, timeout_s=TURN_S)
    for text in texts[1:]:
        await say(stage, text, session_id)


async def say(stage: Stage, text: str, session_id: str = "s") -> None:
    """One more turn."""
    done = (await stage.sessions.get_agent_snapshot(session_id)).turns_done
    await stage.sessions.send_user_message(session_id, text)
    await stage.sessions.wait_for_turn(session_id, done + 1, timeout_s=TURN_S)


async def read(stage: Stage, session_id: str = "s", **options: Any) -> list[str]:
    """Texts of the session, oldest first, read in small pages."""
    texts: list[str] = []
    before: int | None = None
    while True:
        page = await stage.sessions.list_messages(
            session_id, before_turn=before, turns=2, **options
        )
        texts = [*(message.text for message in page.messages), *texts]
        before = page.next_before_turn
        if before is None:
            return texts


def seen(runner: ScriptedRunner) -> list[str]:
    """What the newest model call read of earlier turns."""
    return [message.text for message in runner.requests[-1].history]


async def test_removed_turns_count_no_more_and_stay_readable(stages: Stages) -> None:
    async with stages.play([f"a{n}" for n in range(1, 9)]) as stage:
        await talk(stage, ["m1", "m2", "m3"])
        rewound = await stage.sessions.rewind("s", "t2", request_id="once")
        assert rewound == RewoundSession(
            "s", removed_turns=("t2", "t3"), last_turn_id="t1", next_turn_id="t4"
        )
        snapshot = await stage.sessions.get_agent_snapshot("s")
        assert (snapshot.status, snapshot.turns_done, snapshot.removed_turns) == (
            "idle",
            3,
            ((2, 3),),
        )
        assert snapshot.last_turn == FinishedTurn("t1", "a1")
        assert await read(stage) == ["m1", "a1"]
        await say(stage, "m4")
        assert seen(stage.runner) == ["m1", "a1"]
        assert stage.runner.requests[-1].turn_id == rewound.next_turn_id
        await say(stage, "m5")
        assert seen(stage.runner) == ["m1", "a1", "m4", "a4"]
        # Again, across the gap of the first.
        again = await stage.sessions.rewind("s", "t4")
        assert (again.removed_turns, again.next_turn_id) == (("t4", "t5"), "t6")
        await say(stage, "m6")
        assert seen(stage.runner) == ["m1", "a1"]
        snapshot = await stage.sessions.get_agent_snapshot("s")
        assert snapshot.last_turn == FinishedTurn("t6", "a6")
        assert await read(stage) == ["m1", "a1", "m6", "a6"]
        everything = await read(stage, include_removed=True)
        assert everything == [f"{kind}{n}" for n in range(1, 7) for kind in "ma"]
        assert (await stage.sessions.get_agent_snapshot("s")).usage.model_calls == 6
        # An id that was used is never used again, whatever it was used for first.
        assert await stage.sessions.rewind("s", "t2", request_id="once") == rewound
        assert await read(stage) == ["m1", "a1", "m6", "a6"]


async def test_the_last_turn_is_the_newest_that_is_left_however_it_ended(stages: Stages) -> None:
    held: list[Call] = [Call("pay", ToolEffect.NON_IDEMPOTENT_WRITE, approval=True)]
    script: list[Answer] = ["a1", AgentTurnError("no money"), held, "a4", "a5", "a6"]
    async with stages.play(script) as stage:
        last: dict[str, FinishedTurn | None] = {}
        await talk(stage, ["m1", "m2"])
        last["t2"] = (await stage.sessions.get_agent_snapshot("s")).last_turn
        assert last["t2"] is not None and "no money" in last["t2"].error
        await stage.sessions.send_user_message("s", "m3")
        await stage.sessions.wait_until_settled("s", turns_done=3, timeout_s=TURN_S)
        await stage.sessions.cancel_turn("s")
        last["t3"] = (await stage.sessions.get_agent_snapshot("s")).last_turn
        assert last["t3"] is not None and last["t3"].is_cancelled
        await say(stage, "m4")
        for target, left in (("t4", "t3"), ("t3", "t2")):
            rewound = await stage.sessions.rewind("s", target)
            snapshot = await stage.sessions.get_agent_snapshot("s")
            assert snapshot.last_turn == last[left]
            assert (rewound.last_turn_id, snapshot.turns_done) == (left, 4)
        await stage.sessions.close_session("s")
        snapshot = await stage.sessions.get_agent_snapshot("s")
        assert (snapshot.status, snapshot.last_turn) == ("closed", last["t2"])


async def test_a_client_of_an_earlier_release_rewinds(stages: Stages) -> None:
    """It does not load how the turns ended, so which was the last one is not known."""
    async with stages.play([f"a{n}" for n in range(1, 9)]) as stage:
        await talk(stage, ["m1", "m2", "m3"])
        request = {"request_id": "r", "before_turn": "t3", "finished_turns": 3, "note": None}
        loads = (resources.rewinds.load(message_digest("r")),)
        options = RPCInvokeOptions(load_attribute_map_instances=loads)
        call = stage.client.invoke_rpc
        answer = await call(stage.flow.rewind_rpc, "s", encode(request), options=options)
        assert decode(answer)["removed"] == [3]
        assert (await stage.sessions.get_agent_snapshot("s")).last_turn is None
        await stage.sessions.rewind("s", "t2")
        snapshot = await stage.sessions.get_agent_snapshot("s")
        assert snapshot.last_turn == FinishedTurn("t1", "a1")


async def test_a_rewind_that_is_repeated_acts_once(stages: Stages) -> None:
    async with stages.play([f"a{n}" for n in range(1, 9)]) as stage:
        await talk(stage, ["m1", "m2", "m3", "m4"])
        answers = await asyncio.gather(
            *(stage.sessions.rewind("s", "t4", request_id="r") for _ in range(6))
        )
        assert set(answers) == {RewoundSession("s", ("t4",), "t3", "t5")}
        with pytest.raises(RequestIdReusedError, match=r"'r' has rewound .* before 't4' already"):
            await stage.sessions.rewind("s", "t2", request_id="r")
        assert await read(stage) == ["m1", "a1", "m2", "a2", "m3", "a3"]
        # A message whose place a removed turn took is not taken twice either.
        await stage.sessions.send_user_message("s", "m5", message_id="same")
        await stage.sessions.wait_for_turn("s", 5, timeout_s=TURN_S)
        await stage.sessions.rewind("s", "t5", request_id="r2")
        await stage.sessions.send_user_message("s", "m5", message_id="same")
        await say(stage, "m6")
        assert await read(stage) == ["m1", "a1", "m2", "a2", "m3", "a3", "m6", "a6"]
        # The id is worth the same while a turn is open.
        hold = stage.runner.before_answer = Hold()
        await stage.sessions.send_user_message("s", "m7")
        await hold.reached()
        assert await stage.sessions.rewind("s", "t4", request_id="r") == answers[0]
        hold.may_go.set()
        await stage.sessions.wait_for_turn("s", 7, timeout_s=TURN_S)


async def test_an_open_turn_is_in_the_way(stages: Stages) -> None:
    calls = [Call("pay", ToolEffect.NON_IDEMPOTENT_WRITE, approval=True)]
    async with stages.play(["a1", calls, "a3", "a4"]) as stage:
        await talk(stage, ["m1"])
        await stage.sessions.send_user_message("s", "m2")
        await stage.sessions.wait_until_settled("s", turns_done=2, timeout_s=TURN_S)
        with pytest.raises(TurnOpenError, match=r"turn t2 of session 's' is open; .* cancel_turn"):
            await stage.sessions.rewind("s", "t1")
        with pytest.raises(TurnOpenError, match="turn t2"):
            await stage.sessions.rewind("s", "t2")
        assert await stage.sessions.cancel_turn("s")
        rewound = await stage.sessions.rewind("s", "t2")
        assert rewound.removed_turns == ("t2",)
        await say(stage, "m3")
        assert seen(stage.runner) == ["m1", "a1"]


async def test_a_message_that_waits_is_in_the_way(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stages.play(["a1", "a2", "a3"]) as stage:
        await talk(stage, ["m1", "m2"])
        wait_for = AwaitUserMessage.wait_for

        async def fail(step: object, context: AsyncContext, input: bytes) -> Wait:
            raise OSError("not yet")

        hold = stage.runner.before_answer = Hold()
        await stage.sessions.send_user_message("s", "m3")
        await hold.reached()
        monkeypatch.setattr(AwaitUserMessage, "wait_for", fail)
        hold.may_go.set()
        await stage.sessions.wait_for_turn("s", 3, timeout_s=TURN_S)
        await stage.sessions.send_user_message("s", "m4")
        with pytest.raises(TurnOpenError, match="a message that waits for its turn"):
            await stage.sessions.rewind("s", "t2")
        monkeypatch.setattr(AwaitUserMessage, "wait_for", wait_for)


async def test_messages_sent_while_a_session_is_rewound_open_turns_before_or_after(
    stages: Stages,
) -> None:
    async with stages.play([f"a{n}" for n in range(1, 60)]) as stage:
        await talk(stage, ["m1"])
        for number in range(8):
            await say(stage, f"m{number}")
            before = await read(stage)
            done = (await stage.sessions.get_agent_snapshot("s")).turns_done
            rewound, _ = await asyncio.gather(
                stage.sessions.rewind("s", f"t{done}"),
                stage.sessions.send_user_message("s", f"x{number}"),
                return_exceptions=True,
            )
            await stage.sessions.wait_for_turn("s", done + 1, timeout_s=TURN_S)
            after = await read(stage)
            if isinstance(rewound, TurnOpenError):
                assert after == [*before, f"x{number}", f"a{done + 1}"]
                assert seen(stage.runner) == before
                continue
            assert isinstance(rewound, RewoundSession)
            if f"t{done + 1}" in rewound.removed_turns:  # it had ended by then
                assert seen(stage.runner) == before
                assert after == before[:-2]
            else:
                assert rewound.next_turn_id == f"t{done + 1}"
                assert seen(stage.runner) == before[:-2]
                assert after == [*before[:-2], f"x{number}", f"a{done + 1}"]


async def test_wrong_targets_have_names(stages: Stages) -> None:
    async with stages.play([f"a{n}" for n in range(1, 9)]) as stage:
        await talk(stage, ["m1", "m2", "m3"])
        await talk(stage, ["o1", "o2", "o3", "o4", "o5"], "other")
        before = await stage.sessions.get_agent_snapshot("s")
        event_id = "5f0c1f6e-7b1d-4a53-9f0a-0d6f7a1c2b3e"
        for target in (
            "t5",
            event_id,
            "e-" + event_id,
            "t0",
            "t01",
            "T2",
            "2",
            "t99999999999",
            "s/t2",
        ):
            with pytest.raises(TurnTargetError, match=r"is none of its finished turns, t1 to t3;"):
                await stage.sessions.rewind("s", target)
        with pytest.raises(TurnTargetError, match="no turn before t1 to go back to; start a new"):
            await stage.sessions.rewind("s", "t1")
        wrong: Any = 2
        with pytest.raises(InvalidInputError, match="before_turn_id must be a str, got int"):
            await stage.sessions.rewind("s", wrong)
        with pytest.raises(InvalidInputError, match="request_id must not be blank"):
            await stage.sessions.rewind("s", "t2", request_id=" ")
        with pytest.raises(SessionNotFoundError, match="no session 'none'"):
            await stage.sessions.rewind("none", "t2")
        assert await stage.sessions.get_agent_snapshot("s") == before
        await stage.sessions.rewind("s", "t3")
        with pytest.raises(
            TurnTargetError, match=r"t3 was removed by an .* the newest left are t1, t2$"
        ):
            await stage.sessions.rewind("s", "t3")
        await stage.sessions.close_session("s")
        with pytest.raises(SessionClosedError):
            await stage.sessions.rewind("s", "t2")
        assert await read(stage) == ["m1", "a1", "m2", "a2"]


async def test_a_turn_that_the_caller_has_not_seen_is_not_removed(stages: Stages) -> None:
    async with stages.play([f"a{n}" for n in range(1, 9)]) as stage:
        rewind = stage.sessions.rewind
        await talk(stage, ["m1", "m2", "m3"])
        with pytest.raises(
            NewerTurnError, match=r"turn t3 has ended, which is newer than expected_"
        ):
            await rewind("s", "t2", expected_last_turn_id="t2", request_id="r")
        with pytest.raises(TurnTargetError, match=r"expected_last_turn_id is none .*, t1 to t3;"):
            await rewind("s", "t2", expected_last_turn_id="t4")
        assert await read(stage) == ["m1", "a1", "m2", "a2", "m3", "a3"]
        # An id that was refused is free, and one that acted answers the same whatever came since.
        rewound = await rewind("s", "t3", expected_last_turn_id="t3", request_id="r")
        assert rewound.removed_turns == ("t3",)
        await say(stage, "m4")
        assert await rewind("s", "t3", expected_last_turn_id="t3", request_id="r") == rewound
        # Removed turns are not newer ones, and may be what was seen last.
        with pytest.raises(NewerTurnError, match="turn t4"):
            await rewind("s", "t2", expected_last_turn_id="t3")
        await rewind("s", "t4", expected_last_turn_id="t4")
        assert (await rewind("s", "t2", expected_last_turn_id="t4")).removed_turns == ("t2",)
        assert await read(stage) == ["m1", "a1"]


class NotingRunner(ScriptedRunner):
    """Keeps the texts of removed messages."""

    def note_removed(self, note: Json, messages: Sequence[AgentMessage]) -> Json:
        return [*(note or []), *(message.text for message in messages)]


async def test_the_runner_is_told_what_it_noted_of_removed_turns(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = [f"a{n}" for n in range(1, 40)]
    async with stages.play(script, runner_class=NotingRunner) as stage:
        await talk(stage, [f"m{n}" for n in range(1, 27)])
        await stage.sessions.rewind("s", "t3")
        assert stage.runner.requests[-1].removed is None
        await say(stage, "m27")
        removed = [f"{kind}{n}" for n in range(3, 27) for kind in "ma"]
        assert stage.runner.requests[-1].removed == removed
        await stage.sessions.rewind("s", "t27")
        await say(stage, "m28")
        assert stage.runner.requests[-1].removed == [*removed, "m27", "a27"]
        monkeypatch.setattr(
            stage.runner, "note_removed", lambda note, messages: os.urandom(400_000).hex()
        )
        with pytest.raises(InvalidInputError, match=r"note of removed turns has .* fork"):
            await stage.sessions.rewind("s", "t28")
        assert await read(stage) == ["m1", "a1", "m2", "a2", "m28", "a28"]
