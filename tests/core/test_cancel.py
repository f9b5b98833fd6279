"""Turns that are cancelled: what stops, what is known of their calls, and what goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from dex import Context, RPCInvokeOptions, RPCResult, rpc

from core.conftest import TURN_S, Stage, Stages
from core.open_flow import OpenFlow, stored
from core.scripted_runner import Answer, Call, Tool
from dex_agents import (
    AgentMessage,
    AgentSessionFlow,
    DeferredToolExecution,
    InterruptError,
    InvalidInputError,
    RunModelRequest,
    SessionClosedError,
    SessionNotFoundError,
    SessionUnavailableError,
    ToolEffect,
)
from dex_agents._session import connection, resources

CANCELLED = "the user cancelled the turn"
UNANSWERED = "it waited for an answer, and nobody gave one before the turn was cancelled"


class Hold:
    """A place at which a model call or a tool stays until it is let go or cancelled."""

    def __init__(self) -> None:
        self.is_there = asyncio.Event()
        self.may_go = asyncio.Event()
        self.cancelled = 0

    async def __call__(self, _: object) -> Any:
        self.is_there.set()
        try:
            async with asyncio.timeout(TURN_S):
                await self.may_go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return "held"

    async def reached(self) -> None:
        async with asyncio.timeout(TURN_S):
            await self.is_there.wait()


async def look(call: DeferredToolExecution) -> Any:
    return "seen"


async def note_of(stage: Stage, turn_id: str = "t1", session_id: str = "s") -> str:
    page = await stage.sessions.list_messages(session_id)
    return [m.text for m in page.messages if m.turn_id == turn_id][-1]


async def test_a_model_call_is_stopped_and_the_next_message_goes_on(stages: Stages) -> None:
    async with stages.play(["done"]) as stage:
        hold = stage.runner.before_answer = Hold()
        await stage.sessions.start_session("s", "hello")
        await hold.reached()
        await stage.sessions.send_user_message("s", "again")
        stage.runner.before_answer = None
        assert await stage.sessions.cancel_turn("s", turn_id="t1")
        assert hold.cancelled == 1
        snapshot = await stage.sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
        assert snapshot.last_turn is not None
        assert (snapshot.last_turn.final_text, snapshot.last_turn.is_cancelled) == ("done", False)
        texts = [message.text for message in stage.runner.requests[-1].history]
        assert texts[0] == "hello"
        assert texts[1].startswith("[session note] The turn above was cancelled")
        assert await stage.shape("s") == [
            "AwaitUserMessage",
            "CancelTurn",
            "AwaitUserMessage",
            "RunModel",
        ]


async def test_the_snapshot_of_a_cancelled_turn_says_so(stages: Stages) -> None:
    async with stages.play(["done"]) as stage:
        hold = stage.runner.before_answer = Hold()
        await stage.sessions.start_session("s", "hello")
        await hold.reached()
        events = stage.sessions.read_events("s")
        async with asyncio.timeout(TURN_S):
            assert (await anext(events)).events[0].type == "turn_started"
        assert await stage.sessions.cancel_turn("s")
        snapshot = await stage.sessions.get_agent_snapshot("s")
        assert (snapshot.status, snapshot.turn_id, snapshot.turns_done) == ("idle", "", 1)
        assert snapshot.last_turn is not None and snapshot.last_turn.is_cancelled
        assert snapshot.last_turn.error == CANCELLED
        async with asyncio.timeout(TURN_S):
            (event,) = (await anext(events)).events
        assert (event.type, event.turn_id) == ("turn_cancelled", "t1")
        assert event.data == {"reason": CANCELLED}


async def test_each_open_call_is_told_to_the_next_model(stages: Stages) -> None:
    holds = {"write": Hold(), "read": Hold()}
    calls = [
        Call("look", ToolEffect.NON_IDEMPOTENT_WRITE),
        Call("write", ToolEffect.NON_IDEMPOTENT_WRITE),
        Call("write", ToolEffect.IDEMPOTENT_WRITE),
        Call("read"),
        Call("look", ToolEffect.NON_IDEMPOTENT_WRITE, approval=True),
        Call("look", approval=True),
    ]
    async with stages.play([calls, "done"], {"look": look, **holds}) as stage:
        await stage.sessions.start_session("s", "hello")
        snapshot = await stage.sessions.wait_until_settled("s", turns_done=1, timeout_s=TURN_S)
        first, last = snapshot.pending_interrupts
        await stage.sessions.resolve_interrupt("s", last.interrupt_id, approved=False)
        # Every call but the first to be approved has its record or runs.
        await entered(stage, "write", 2)
        await holds["read"].reached()
        await records_of(stage, 2)
        assert await stage.sessions.cancel_turn("s")
        lines = (await note_of(stage)).splitlines()
        assert [line.split(": ", 2)[1:] for line in lines[2:8]] == [
            ["succeeded", '"seen"'],
            ["outcome_unknown", "the turn was cancelled while it ran"],
            ["outcome_unknown", "the turn was cancelled while it ran"],
            ["failed", "the turn was cancelled while it ran"],
            ["failed", f"The tool did not run: {UNANSWERED}"],
            ["rejected", "The user rejected this tool call, so it was not run."],
        ]
        assert (holds["write"].cancelled, holds["read"].cancelled) == (2, 1)
        assert stage.runner.count("look") == 1
        snapshot = await stage.sessions.get_agent_snapshot("s")
        assert snapshot.pending_interrupts == ()
        with pytest.raises(InterruptError, match="not pending"):
            await stage.sessions.resolve_interrupt("s", first.interrupt_id, approved=True)
        await stage.sessions.send_user_message("s", "more")
        await stage.sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
        assert stage.runner.requests[-1].history[-1].text.splitlines() == lines
        assert stage.runner.count("look") == 1


async def test_messages_of_cancelled_calls_go_when_the_next_turn_opens(stages: Stages) -> None:
    hold = Hold()
    tools: dict[str, Tool] = {"look": look, "read": hold}
    async with stages.play(
        [[Call("look"), Call("read")], "done"], tools, flow_class=OpenFlow
    ) as stage:
        await stage.sessions.start_session("s", "hello")
        await hold.reached()
        await records_of(stage, 1)
        assert await stage.sessions.cancel_turn("s")
        assert (await stored(stage))["finished_calls"] == ["t1.1"]  # nobody waits for it any more
        await stage.sessions.send_user_message("s", "more")
        await stage.sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
        assert await stored(stage) == {}


async def entered(stage: Stage, tool: str, count: int) -> None:
    """Wait until a tool was entered so often."""
    async with asyncio.timeout(TURN_S):
        while True:
            if stage.runner.count(tool) >= count:
                return
            await asyncio.sleep(0.01)


async def records_of(stage: Stage, count: int, session_id: str = "s") -> None:
    """Wait until so many calls of the session have their record."""
    async with asyncio.timeout(TURN_S):
        while True:
            shape = await stage.shape(session_id)
            approvals = shape.count("AwaitToolApproval")
            if shape.count("CallTool") + shape.count("CallSingleAttemptTool") + approvals == count:
                return
            await asyncio.sleep(0.01)


async def test_calls_of_earlier_responses_are_told_too(stages: Stages) -> None:
    async with stages.play([[Call("look")], [Call("look")], "done"], {"look": look}) as stage:
        hold = Hold()

        async def hold_third(request: RunModelRequest) -> None:
            if len(stage.runner.requests) == 3:
                await hold(request)

        stage.runner.before_answer = hold_third
        await stage.sessions.start_session("s", "hello")
        await hold.reached()
        assert await stage.sessions.cancel_turn("s")
        assert (await note_of(stage)).count("look (c") == 2


async def test_without_the_turn_that_is_meant_nothing_happens(stages: Stages) -> None:
    async with stages.play(["one", "two"]) as stage:
        await stage.sessions.start_session("s", "hello")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert not await stage.sessions.cancel_turn("s")
        assert not await stage.sessions.cancel_turn("s", turn_id="t1")
        hold = stage.runner.before_answer = Hold()
        await stage.sessions.send_user_message("s", "more")
        await hold.reached()
        for other in ("t1", "t3", "t99"):
            assert not await stage.sessions.cancel_turn("s", turn_id=other)
        hold.may_go.set()
        snapshot = await stage.sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
        assert snapshot.last_turn is not None and snapshot.last_turn.final_text == "two"


async def test_of_many_cancels_one_has_an_effect(stages: Stages) -> None:
    async with stages.play(["done"]) as stage:
        hold = stage.runner.before_answer = Hold()
        await stage.sessions.start_session("s", "hello")
        await hold.reached()
        await stage.sessions.send_user_message("s", "next")
        stage.runner.before_answer = None
        answers = await asyncio.gather(
            *(stage.sessions.cancel_turn("s", turn_id="t1") for _ in range(6))
        )
        assert any(answers)
        snapshot = await stage.sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
        assert (snapshot.status, snapshot.turns_done) == ("idle", 2)
        page = await stage.sessions.list_messages("s")
        assert [m.sequence for m in page.messages] == [0, 1, 2, 3]
        assert page.messages[3].text == "done"
        assert hold.cancelled == 1


async def test_a_turn_that_ends_at_the_same_moment_ends_once(stages: Stages) -> None:
    turns = 25
    async with stages.play([f"answer {n}" for n in range(turns + 2)]) as stage:
        cancelled = 0
        await stage.sessions.start_session("s", "m1")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        for turn in range(2, turns + 2):
            hold = stage.runner.before_answer = Hold()
            await stage.sessions.send_user_message("s", f"m{turn}")
            await hold.reached()

            async def let_go(hold: Hold = hold, turn: int = turn) -> None:
                for _ in range(turn * 4):  # turns of the loop, to meet each place
                    await asyncio.sleep(0)
                hold.may_go.set()

            was, _ = await asyncio.gather(
                stage.sessions.cancel_turn("s", turn_id=f"t{turn}"), let_go()
            )
            snapshot = await stage.sessions.wait_for_turn("s", turn, timeout_s=TURN_S)
            assert snapshot.turns_done == turn
            assert snapshot.last_turn is not None
            assert snapshot.last_turn.turn_id == f"t{turn}"
            assert snapshot.last_turn.is_cancelled == was
            cancelled += was
        stage.runner.before_answer = None
        page = await stage.sessions.list_messages("s", turns=100)
        assert len(page.messages) == 2 * (turns + 1)
        assert sum("cancelled" in message.text for message in page.messages) == cancelled
        await stage.sessions.send_user_message("s", "last")
        snapshot = await stage.sessions.wait_for_turn("s", turns + 2, timeout_s=TURN_S)
        assert snapshot.last_turn is not None and not snapshot.last_turn.is_cancelled


async def test_an_answer_at_the_same_moment_acts_at_most_once(stages: Stages) -> None:
    pay = Call("pay", ToolEffect.NON_IDEMPOTENT_WRITE, approval=True)
    script: list[Answer] = [[pay], "done", "more"]
    async with stages.play(script, {"pay": look}) as stage:

        async def race(session_id: str) -> None:
            await stage.sessions.start_session(session_id, "hello")
            snapshot = await stage.sessions.wait_until_settled(
                session_id, turns_done=1, timeout_s=TURN_S
            )
            (pending,) = snapshot.pending_interrupts
            answered, was = await asyncio.gather(
                stage.sessions.resolve_interrupt(session_id, pending.interrupt_id, approved=True),
                stage.sessions.cancel_turn(session_id),
                return_exceptions=True,
            )
            assert answered is None or isinstance(
                answered, InterruptError | SessionUnavailableError
            )
            snapshot = await stage.sessions.wait_for_turn(session_id, 1, timeout_s=TURN_S)
            assert (snapshot.status, snapshot.pending_interrupts) == ("idle", ())
            assert snapshot.last_turn is not None
            if isinstance(was, SessionUnavailableError):
                was = snapshot.last_turn.is_cancelled  # the answer was lost on its way
            assert snapshot.last_turn.is_cancelled is was
            runs = sum(call.session_id == session_id for call in stage.runner.executions)
            assert runs <= 1
            if was and runs:
                note = await note_of(stage, session_id=session_id)
                assert "outcome_unknown" in note or "succeeded" in note
            if isinstance(answered, InterruptError):
                assert runs == 0

        await asyncio.gather(*(race(f"s{n}") for n in range(12)))


async def test_no_answer_counts_once_a_cancel_is_stored(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    pay = Call("pay", ToolEffect.NON_IDEMPOTENT_WRITE, approval=True)
    script: list[Answer] = [[pay], "done"]
    async with stages.play(script, {"pay": look}) as stage:
        await stage.sessions.start_session("s", "hello")
        snapshot = await stage.sessions.wait_until_settled("s", turns_done=1, timeout_s=TURN_S)
        (pending,) = snapshot.pending_interrupts
        failed = asyncio.Event()

        def fail(text: str) -> AgentMessage:
            failed.set()
            raise OSError("not now")

        # The Step that ends the turn fails once, so that its work is open for a second.
        monkeypatch.setattr(stage.runner, "build_user_message", fail)
        cancelling = asyncio.create_task(stage.sessions.cancel_turn("s"))
        async with asyncio.timeout(TURN_S):
            await failed.wait()
        monkeypatch.undo()
        snapshot = await stage.sessions.get_agent_snapshot("s")
        assert (snapshot.status, snapshot.pending_interrupts) == ("running", ())
        with pytest.raises(InterruptError, match="not pending"):
            await stage.sessions.resolve_interrupt("s", pending.interrupt_id, approved=True)
        assert await cancelling
        assert "pay (c0-0): failed: The tool did not run" in await note_of(stage)
        assert stage.runner.count("pay") == 0


class BusyFlow(AgentSessionFlow):
    """Has an RPC that holds the header's lock, and what its caller names."""

    may_go: asyncio.Event
    is_there: asyncio.Event

    @rpc(name="hold", lock_attributes=(resources.header.lock(),))
    async def hold_rpc(self, context: Context, name: bytes) -> RPCResult[bytes]:
        """Hold the lock."""
        self.is_there.set()
        async with asyncio.timeout(TURN_S):
            await self.may_go.wait()
        return RPCResult(name)


async def test_a_lock_that_is_held_has_a_name_of_its_own(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LOCK_WAIT_S", 0.5)
    pay = Call("pay", ToolEffect.NON_IDEMPOTENT_WRITE, approval=True)
    script: list[Answer] = [[pay], "done"]
    async with stages.play(script, {"pay": look}, flow_class=BusyFlow) as stage:
        flow = stage.flow
        assert isinstance(flow, BusyFlow)
        flow.may_go, flow.is_there = asyncio.Event(), asyncio.Event()
        await stage.sessions.start_session("s", "hello")
        snapshot = await stage.sessions.wait_until_settled("s", turns_done=1, timeout_s=TURN_S)
        (pending,) = snapshot.pending_interrupts
        options = RPCInvokeOptions(
            lock_attribute_map_instances=(resources.interrupts.lock(pending.interrupt_id),)
        )
        hold: Any = flow.hold_rpc  # the SDK's type hints do not know async RPCs
        holding = asyncio.create_task(stage.client.invoke_rpc(hold, "s", b"x", options=options))
        async with asyncio.timeout(TURN_S):
            await flow.is_there.wait()
        for command in (
            stage.sessions.resolve_interrupt("s", pending.interrupt_id, approved=True),
            stage.sessions.cancel_turn("s"),
        ):
            with pytest.raises(
                SessionUnavailableError, match=r"busy .* nothing changed, call again"
            ):
                await command
        flow.may_go.set()
        await holding
        await stage.sessions.resolve_interrupt("s", pending.interrupt_id, approved=True)
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert stage.runner.count("pay") == 1


async def test_wrong_uses_have_names(stages: Stages) -> None:
    async with stages.play(["done"]) as stage:
        with pytest.raises(InvalidInputError, match="session_id 'a/b' must not contain '/'"):
            await stage.sessions.cancel_turn("a/b")
        with pytest.raises(SessionNotFoundError, match="no session 'none'"):
            await stage.sessions.cancel_turn("none")
        await stage.sessions.start_session("s", "hello")
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        await stage.client.stop_flow("s")
        with pytest.raises(SessionClosedError, match="closed"):
            await stage.sessions.cancel_turn("s")
