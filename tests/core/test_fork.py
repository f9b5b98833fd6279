"""Forked sessions: what they start with, that the source stays as it is, and that it happens once."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from core.conftest import TURN_S, Stages
from core.scripted_runner import Call, ScriptedRunner
from core.test_cancel import Hold
from core.test_rewind import read, say, seen, talk
from dex_agents import (
    AgentMessage,
    AgentSessionClient,
    AgentSessionFlow,
    AgentSessionOptions,
    AgentTurnError,
    CompactionPolicy,
    CompactionRequest,
    DeferredToolExecution,
    FinishedTurn,
    ForkedSession,
    HistorySummary,
    InterruptError,
    InvalidInputError,
    Json,
    MessageRole,
    ModelCallMetadata,
    SessionAlreadyExistsError,
    SessionClosedError,
    SessionNotFoundError,
    TokenUsage,
    TurnTargetError,
)
from dex_agents._session import branch, forking
from dex_agents.testing import private_engine
from support.serving import serve

ANSWERS = [f"a{n}" for n in range(1, 60)]


async def test_a_fork_goes_on_from_an_earlier_turn_and_leaves_its_source_alone(
    stages: Stages,
) -> None:
    async with stages.play(ANSWERS) as stage:
        await talk(stage, ["m1", "m2", "m3"])
        before = await stage.sessions.get_agent_snapshot("s")
        forked = await stage.sessions.fork_session("s", "f", before_turn_id="t3")
        assert forked == ForkedSession("f", "s", last_turn_id="t2", next_turn_id="t3")
        snapshot = await stage.sessions.get_agent_snapshot("f")
        assert (snapshot.status, snapshot.turns_done) == ("idle", 2)
        assert snapshot.last_turn == FinishedTurn("t2", "a2")
        assert (snapshot.forked_from, snapshot.usage.model_calls) == ("s", 0)
        assert await read(stage, "f") == ["m1", "a1", "m2", "a2"]
        await stage.sessions.send_user_message("f", "n3")
        snapshot = await stage.sessions.wait_for_turn("f", 3, timeout_s=TURN_S)
        assert snapshot.last_turn is not None
        assert snapshot.last_turn.turn_id == forked.next_turn_id
        assert seen(stage.runner) == ["m1", "a1", "m2", "a2"]
        history = stage.runner.requests[-1].history
        assert [message.origin_session_id for message in history] == ["s"] * 4
        sequences = [m.sequence for m in (await stage.sessions.list_messages("f")).messages]
        assert sequences == sorted(set(sequences))
        # Nothing of it reached the source, and nothing of the source reaches it.
        assert await stage.sessions.get_agent_snapshot("s") == before
        await say(stage, "m4")
        assert await read(stage) == ["m1", "a1", "m2", "a2", "m3", "a3", "m4", "a4"]
        assert await read(stage, "f") == ["m1", "a1", "m2", "a2", "n3", "a1"]
        # A fork of the fork, with the turns of both.
        await stage.sessions.fork_session("f", "g")
        await say(stage, "o4", "g")
        history = stage.runner.requests[-1].history
        assert [m.origin_session_id for m in history] == ["s"] * 4 + ["f"] * 2
        # Going back behind where it was forked changes nothing in its source.
        await stage.sessions.rewind("g", "t2")
        await say(stage, "o5", "g")
        assert seen(stage.runner) == ["m1", "a1"]
        assert await read(stage) == ["m1", "a1", "m2", "a2", "m3", "a3", "m4", "a4"]


async def test_a_fork_of_a_rewound_session_has_what_counts(stages: Stages) -> None:
    async with stages.play(ANSWERS) as stage:
        await talk(stage, ["m1", "m2", "m3"])
        await stage.sessions.rewind("s", "t2")
        await say(stage, "m4")
        await say(stage, "m5")
        after = await stage.sessions.fork_session("s", "f", after_turn_id="t4")
        assert (after.last_turn_id, after.next_turn_id) == ("t4", "t5")
        assert await read(stage, "f") == ["m1", "a1", "m4", "a4"]
        everything = await stage.sessions.fork_session("s", "g")
        assert everything.last_turn_id == "t5"
        with pytest.raises(TurnTargetError, match=r"t2 was removed by an .* left are t1, t4, t5$"):
            await stage.sessions.fork_session("s", "h", after_turn_id="t2")
        await say(stage, "n5", "f")
        assert seen(stage.runner) == ["m1", "a1", "m4", "a4"]


async def test_a_fork_shows_how_its_turns_ended_also_after_a_rewind(stages: Stages) -> None:
    async with stages.play(["a1", AgentTurnError("no money"), "a3"]) as stage:
        hold = Hold()
        await talk(stage, ["m1", "m2"])
        failed = (await stage.sessions.get_agent_snapshot("s")).last_turn
        assert failed is not None and "no money" in failed.error
        stage.runner.before_answer = hold
        await stage.sessions.send_user_message("s", "m3")
        await hold.reached()
        assert (await stage.sessions.close_session("s")).cancelled_turn == "t3"
        closed = (await stage.sessions.get_agent_snapshot("s")).last_turn
        await stage.sessions.fork_session("s", "f")
        assert closed is not None and closed.is_cancelled
        assert (await stage.sessions.get_agent_snapshot("f")).last_turn == closed
        # The close of the source is none of the fork.
        await stage.sessions.fork_session("f", "g")
        assert (await stage.sessions.close_session("g")).cancelled_turn == ""
        await stage.sessions.rewind("f", "t3")
        assert (await stage.sessions.get_agent_snapshot("f")).last_turn == failed
        await stage.sessions.rewind("f", "t2")
        assert (await stage.sessions.get_agent_snapshot("f")).last_turn == FinishedTurn("t1", "a1")


async def test_the_same_fork_happens_once(stages: Stages) -> None:
    async with stages.play(ANSWERS) as stage:
        await talk(stage, ["m1", "m2", "m3"])
        answers = await asyncio.gather(
            *(stage.sessions.fork_session("s", "f") for _ in range(5)),
        )
        assert set(answers) == {ForkedSession("f", "s", "t3", "t4")}
        await say(stage, "m4")
        await say(stage, "n4", "f")
        assert await stage.sessions.fork_session("s", "f") == answers[0]
        assert await read(stage, "f") == ["m1", "a1", "m2", "a2", "m3", "a3", "n4", "a1"]
        for other in ({"before_turn_id": "t3"}, {"after_turn_id": "t3"}):
            with pytest.raises(SessionAlreadyExistsError, match="'f' was already started, and not"):
                await stage.sessions.fork_session("s", "f", **other)
        with pytest.raises(SessionAlreadyExistsError, match="another session id"):
            await stage.sessions.fork_session("f", "s")
        with pytest.raises(SessionAlreadyExistsError):
            await stage.sessions.fork_session("s", "s")
        with pytest.raises(SessionAlreadyExistsError):
            await stage.sessions.start_session("f", "hello")


async def test_open_turns_and_closed_sources_are_no_obstacle(stages: Stages) -> None:
    async with stages.play(ANSWERS) as stage:
        await talk(stage, ["m1"])
        hold = stage.runner.before_answer = Hold()
        await stage.sessions.send_user_message("s", "m2")
        await hold.reached()
        await stage.sessions.fork_session("s", "f")
        assert await read(stage, "f") == ["m1", "a1"]
        with pytest.raises(TurnTargetError, match=r"'t2' is none of its finished turns, t1 to t1;"):
            await stage.sessions.fork_session("s", "g", after_turn_id="t2")
        hold.may_go.set()
        await stage.sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
        await stage.sessions.close_session("s")
        with pytest.raises(SessionClosedError):
            await stage.sessions.rewind("s", "t2")
        await stage.sessions.fork_session("s", "g", after_turn_id="t2")
        await say(stage, "n3", "g")
        assert seen(stage.runner) == ["m1", "a1", "m2", "a2"]


async def test_wrong_targets_create_nothing(stages: Stages) -> None:
    async with stages.play(ANSWERS) as stage:
        await talk(stage, ["m1", "m2"])
        for target in ("t3", "e-5f0c1f6e-7b1d-4a53-9f0a-0d6f7a1c2b3e", "t0", "s/t1"):
            for name in ("before_turn_id", "after_turn_id"):
                with pytest.raises(TurnTargetError, match="is none of its finished turns"):
                    await stage.sessions.fork_session("s", "f", **{name: target})
        with pytest.raises(TurnTargetError, match="no turn before t1 to go back to"):
            await stage.sessions.fork_session("s", "f", before_turn_id="t1")
        with pytest.raises(InvalidInputError, match="exclude each other; leave one of them out"):
            await stage.sessions.fork_session("s", "f", before_turn_id="t2", after_turn_id="t1")
        with pytest.raises(InvalidInputError, match="new_session_id 'a/b' must not contain '/'"):
            await stage.sessions.fork_session("s", "a/b")
        with pytest.raises(SessionNotFoundError, match="no session 'none'"):
            await stage.sessions.fork_session("none", "f")
        with pytest.raises(SessionNotFoundError, match="no session 'f'; start it"):
            await stage.sessions.get_agent_snapshot("f")


async def test_nothing_is_shown_before_all_has_arrived(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stages.play(ANSWERS) as stage:
        await talk(stage, [f"m{n}" for n in range(1, 6)])
        monkeypatch.setattr(forking, "TURNS_AT_ONCE", 2)
        pages = branch.read_pages
        left = 2

        async def break_off(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise ConnectionError("broken off")
            return await pages(*arguments, **options)

        monkeypatch.setattr(forking, "read_pages", break_off)
        with pytest.raises(ConnectionError):
            await stage.sessions.fork_session("s", "f")
        sessions = stage.sessions
        for command in (
            sessions.get_agent_snapshot("f"),
            sessions.send_user_message("f", "hello"),
            sessions.steer_user_message("f", "hello"),
            sessions.cancel_turn("f"),
            sessions.list_messages("f"),
            sessions.rewind("f", "t2"),
            sessions.fork_session("f", "g"),
            sessions.resolve_interrupt("f", "t1.1.0", approved=True),
        ):
            with pytest.raises(SessionNotFoundError, match="no session 'f' yet: it is a fork"):
                await command
        # Meanwhile the source goes on; the fork keeps the turns that it was made for.
        monkeypatch.setattr(forking, "read_pages", pages)
        await sessions.rewind("s", "t3")
        await say(stage, "m6")
        assert await sessions.fork_session("s", "f") == ForkedSession("f", "s", "t5", "t6")
        assert await read(stage, "f") == [f"{kind}{n}" for n in range(1, 6) for kind in "ma"]


class Summing(ScriptedRunner):
    """Sums up at once."""

    def estimated_overhead_tokens(self) -> int:
        return 0

    def blocks_compaction(self, messages: Sequence[AgentMessage]) -> bool:
        return False

    async def summarize(self, request: CompactionRequest) -> HistorySummary:
        metadata = ModelCallMetadata(request_model="summary-model")
        return HistorySummary("what happened", TokenUsage(9, 2, 1), metadata)


@contextlib.asynccontextmanager
async def summed_up(
    folder: Path, turns: int, options: AgentSessionOptions | None = None
) -> AsyncIterator[AgentSessionClient]:
    """Session ``s`` after so many turns, the first of them behind a summary."""
    flow = AgentSessionFlow(
        Summing([f"answer {number}" for number in range(turns)]),
        flow_type="Summing",
        compaction=CompactionPolicy(1_000, trigger_ratio=0.5, kept_turns=1),
        options=options,
    )
    async with (
        private_engine(folder / "e.db") as engine,
        serve(engine.address, flow, folder) as sessions,
    ):
        await sessions.start_session("s", "x" * 900)
        for number in range(1, turns):
            await sessions.wait_for_turn("s", number, timeout_s=TURN_S)
            await sessions.send_user_message("s", "x" * 900)
        await sessions.wait_for_turn("s", turns, timeout_s=TURN_S)
        yield sessions


async def test_a_fork_whose_summary_was_deleted_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def break_off(*arguments: Any) -> None:
        raise ConnectionError("broken off")

    async with summed_up(tmp_path, 6) as sessions:
        with monkeypatch.context() as patched:
            patched.setattr(forking, "_copy", break_off)
            with pytest.raises(ConnectionError):
                await sessions.fork_session("s", "f")
        await sessions.rewind("s", "t2")
        with pytest.raises(TurnTargetError, match=r"by a rewind.*close session 'f'"):
            await sessions.fork_session("s", "f")
        await sessions.close_session("f")
        with pytest.raises(SessionAlreadyExistsError, match="not by a fork with these arguments"):
            await sessions.fork_session("s", "f", after_turn_id="t1")
        await sessions.fork_session("s", "g", after_turn_id="t1")


async def test_forks_and_a_rewind_around_a_summary_while_a_turn_waits(tmp_path: Path) -> None:
    async def pay(call: DeferredToolExecution) -> Any:
        return "paid"

    answers = [f"answer {number}" for number in range(1, 6)]
    runner = Summing([*answers, [Call("pay", approval=True)], "it is paid", "on"], {"pay": pay})
    flow = AgentSessionFlow(
        runner,
        flow_type="Waiting",
        compaction=CompactionPolicy(1_000, trigger_ratio=0.5, kept_turns=1),
    )

    def read_by(session_id: str) -> tuple[HistorySummary | None, list[str]]:
        """What the newest model call of a session has read."""
        request = [r for r in runner.requests if r.session_id == session_id][-1]
        return request.summary, [message.text[:8] for message in request.history]

    async with (
        private_engine(tmp_path / "e.db") as engine,
        serve(engine.address, flow, tmp_path) as sessions,
    ):
        await sessions.start_session("s", "m1")  # too small for a summary of its own
        for number in range(1, 6):
            await sessions.wait_for_turn("s", number, timeout_s=TURN_S)
            await sessions.send_user_message("s", f"m{number + 1} {'x' * 900}")
        waiting = await sessions.wait_until_settled("s", turns_done=6, timeout_s=TURN_S)
        (asked,) = waiting.pending_interrupts
        assert read_by("s")[0] == HistorySummary("what happened")

        await sessions.fork_session("s", "behind")
        await sessions.fork_session("s", "before", after_turn_id="t1")
        for fork in ("behind", "before"):
            snapshot = await sessions.get_agent_snapshot(fork)
            assert (snapshot.status, snapshot.pending_interrupts) == ("idle", ())
            with pytest.raises(InterruptError, match="not pending"):
                await sessions.resolve_interrupt(fork, asked.interrupt_id, approved=True)
        await sessions.send_user_message("behind", f"m6 {'x' * 900}")
        await sessions.wait_for_turn("behind", 6, timeout_s=TURN_S)
        assert read_by("behind") == read_by("s")
        await sessions.send_user_message("before", "m2")
        await sessions.wait_for_turn("before", 2, timeout_s=TURN_S)
        assert read_by("before") == (None, ["m1", "answer 1"])

        # The source has noticed nothing: its call waits, and runs once.
        assert await sessions.get_agent_snapshot("s") == waiting
        await sessions.resolve_interrupt("s", asked.interrupt_id, approved=True)
        ended = await sessions.wait_for_turn("s", 6, timeout_s=TURN_S)
        assert ended.last_turn == FinishedTurn("t6", "it is paid")
        assert [call.session_id for call in runner.executions] == ["s"]
        # Back behind the beginning of the summary, and of what was answered.
        await sessions.rewind("s", "t2")
        with pytest.raises(InterruptError, match="not pending"):
            await sessions.resolve_interrupt("s", asked.interrupt_id, approved=True)
        await sessions.send_user_message("s", "m7")
        await sessions.wait_for_turn("s", 7, timeout_s=TURN_S)
        assert read_by("s") == (None, ["m1", "answer 1"])


async def test_large_histories_are_carried_in_pieces(stages: Stages) -> None:
    async with stages.play(ANSWERS) as stage:
        bulk = [os.urandom(110_000).hex() for _ in range(9)]
        await talk(stage, [f"m1 {bulk[0]}"])
        for number, more in enumerate(bulk[1:], start=2):
            await say(stage, f"m{number} {more}")
        await stage.sessions.fork_session("s", "f")
        page = await stage.sessions.list_messages("f", turns=100)
        whole: list[AgentMessage] = [*page.messages]
        while page.next_before_turn is not None:
            page = await stage.sessions.list_messages(
                "f", before_turn=page.next_before_turn, turns=100
            )
            whole = [*page.messages, *whole]
        users = [message.text for message in whole if message.role == "user"]
        assert users == [f"m{n} {more}" for n, more in enumerate(bulk, start=1)]


class StateRunner(ScriptedRunner):
    """Takes a state."""

    def build_state_message(self, state: Any) -> AgentMessage:
        if "temp" in state:
            raise ValueError("'temp' is not taken")
        item: Json = {"state": dict(state)}
        return AgentMessage(MessageRole.USER, item)


def states(messages: Sequence[AgentMessage]) -> list[Json]:
    return [m.framework_item["state"] for m in messages if "state" in m.framework_item]


async def test_the_state_given_at_creation_stays(stages: Stages) -> None:
    async with stages.play(ANSWERS, runner_class=StateRunner) as stage:
        state = {"tenant": "t1", "limits": {"a": [1, None]}}
        for _ in range(2):
            await stage.sessions.start_session("s", "m1", state=state)
        with pytest.raises(SessionAlreadyExistsError, match="another message or state"):
            await stage.sessions.start_session("s", "m1", state={"tenant": "t2"})
        with pytest.raises(InvalidInputError, match="state is refused: 'temp' is not taken"):
            await stage.sessions.start_session("x", "m1", state={"temp": 1})
        wrong: Any = ["tenant"]
        with pytest.raises(InvalidInputError, match=r"state must be a mapping .* got list"):
            await stage.sessions.start_session("x", "m1", state=wrong)
        with pytest.raises(InvalidInputError, match="state"):
            await stage.sessions.start_session("x", "m1", state={"a": object()})
        await stage.sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert states(stage.runner.requests[-1].history) == [state]
        await say(stage, "m2")
        await say(stage, "m3")
        assert states(stage.runner.requests[-1].history) == [state]
        await stage.sessions.rewind("s", "t2")
        await say(stage, "m4")
        assert states(stage.runner.requests[-1].history) == [state]
        await stage.sessions.fork_session("s", "f", after_turn_id="t1")
        await say(stage, "n2", "f")
        assert states(stage.runner.requests[-1].history) == [state]
        assert await read(stage) == ["m1", "a1", "m4", "a4"]


async def test_a_runner_without_state_takes_none(stages: Stages) -> None:
    async with stages.play(ANSWERS) as stage:
        with pytest.raises(InvalidInputError, match="ScriptedRunner, has no session state; leave"):
            await stage.sessions.start_session("s", "m1", state={"a": 1})
