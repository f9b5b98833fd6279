"""A Worker or an engine that is killed around a rewind or a fork: before it or after it, nothing between."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from core.test_crashes import TURN_S, crash_client, start_worker
from dex_agents import (
    AgentSessionClient,
    ForkedSession,
    RewoundSession,
    SessionNotFoundError,
    SessionUnavailableError,
)
from dex_agents.testing import private_engine

REWOUND = RewoundSession("s", ("t2", "t3"), "t1", "t4")


async def three_turns(sessions: AgentSessionClient) -> None:
    await sessions.start_session("s", "read 1")
    for number in (1, 2, 3):
        await sessions.wait_for_turn("s", number, timeout_s=TURN_S)
        if number < 3:
            await sessions.send_user_message("s", f"read {number + 1}")


async def user_texts(sessions: AgentSessionClient, session_id: str = "s") -> list[str]:
    page = await sessions.list_messages(session_id)
    return [message.text for message in page.messages if message.role == "user"]


async def test_a_worker_that_dies_while_it_rewinds(tmp_path: Path) -> None:
    async with (
        private_engine(tmp_path / "engine.db") as engine,
        crash_client(engine, tmp_path) as sessions,
    ):
        first = await start_worker(engine, tmp_path, ("rewind.before",))
        await three_turns(sessions)
        rewinding = asyncio.create_task(sessions.rewind("s", "t2", request_id="r"))
        assert await first.wait() == -signal.SIGKILL
        second = await start_worker(engine, tmp_path)
        try:
            answer = await rewinding
        except SessionUnavailableError:
            assert await user_texts(sessions) == ["read 1", "read 2", "read 3"]
            answer = await sessions.rewind("s", "t2", request_id="r")
        assert answer == REWOUND
        assert await user_texts(sessions) == ["read 1"]
        await sessions.send_user_message("s", "read 4")
        await sessions.wait_for_turn("s", 4, timeout_s=TURN_S)
        assert await sessions.rewind("s", "t2", request_id="r") == REWOUND
        assert await user_texts(sessions) == ["read 1", "read 4"]
        assert await second.stop() == 0


async def test_an_engine_that_dies_behind_a_rewind(tmp_path: Path) -> None:
    async with (
        private_engine(tmp_path / "engine.db") as engine,
        crash_client(engine, tmp_path) as sessions,
    ):
        worker = await start_worker(engine, tmp_path)
        await three_turns(sessions)
        assert await sessions.rewind("s", "t2", request_id="r") == REWOUND
        await engine.kill()
        await engine.restart()
        await sessions.send_user_message("s", "read 4")
        snapshot = await sessions.wait_for_turn("s", 4, timeout_s=TURN_S)
        assert snapshot.last_turn is not None
        assert snapshot.last_turn.turn_id == REWOUND.next_turn_id
        assert await user_texts(sessions) == ["read 1", "read 4"]
        assert await sessions.rewind("s", "t2", request_id="r") == REWOUND
        assert await worker.stop() == 0


async def test_a_worker_that_dies_while_a_session_is_forked(tmp_path: Path) -> None:
    async with (
        private_engine(tmp_path / "engine.db") as engine,
        crash_client(engine, tmp_path) as sessions,
    ):
        first = await start_worker(engine, tmp_path, ("fork.before",))
        await three_turns(sessions)
        forking = asyncio.create_task(sessions.fork_session("s", "f", before_turn_id="t3"))
        assert await first.wait() == -signal.SIGKILL
        second = await start_worker(engine, tmp_path)
        try:
            answer = await forking
        except SessionUnavailableError:
            with pytest.raises(SessionNotFoundError, match="'f' yet: it is a fork"):
                await sessions.get_agent_snapshot("f")
            answer = await sessions.fork_session("s", "f", before_turn_id="t3")
        assert answer == ForkedSession("f", "s", "t2", "t3")
        assert await user_texts(sessions) == ["read 1", "read 2", "read 3"]
        await engine.kill()
        await engine.restart()
        assert await user_texts(sessions, "f") == ["read 1", "read 2"]
        await sessions.send_user_message("f", "read 4")
        snapshot = await sessions.wait_for_turn("f", 3, timeout_s=TURN_S)
        assert snapshot.last_turn is not None
        assert snapshot.last_turn.final_text == "succeeded"
        assert await sessions.fork_session("s", "f", before_turn_id="t3") == answer
        assert await second.stop() == 0
