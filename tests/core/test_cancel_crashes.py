"""A Worker or an engine that is killed around a cancel."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from core.crash_agent import ledger
from core.test_crashes import SINGLE, TURN_S, crash_client, start_worker
from dex_agents import AgentSessionClient
from dex_agents.testing import private_engine


async def until_paid(folder: Path) -> None:
    async with asyncio.timeout(TURN_S):
        while True:
            if ledger(folder).count("paid"):
                return
            await asyncio.sleep(0.01)


async def assert_cancelled(sessions: AgentSessionClient, folder: Path) -> None:
    snapshot = await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
    assert snapshot.last_turn is not None and snapshot.last_turn.is_cancelled
    page = await sessions.list_messages("s")
    assert "pay (c): outcome_unknown" in page.messages[-1].text
    await sessions.send_user_message("s", "read")
    snapshot = await sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
    assert snapshot.last_turn is not None
    assert snapshot.last_turn.final_text == "succeeded"
    assert ledger(folder).count("paid", key="s/t1/c") == 1


async def test_a_worker_that_dies_while_it_ends_a_cancelled_turn(tmp_path: Path) -> None:
    async with (
        private_engine(tmp_path / "engine.db") as engine,
        crash_client(engine, tmp_path) as sessions,
    ):
        first = await start_worker(engine, tmp_path, ("cancel.before",))
        await sessions.start_session("s", f"{SINGLE} hang")
        await until_paid(tmp_path)
        cancelling = asyncio.create_task(sessions.cancel_turn("s", turn_id="t1"))
        assert await first.wait() == -signal.SIGKILL
        second = await start_worker(engine, tmp_path)
        assert await cancelling
        assert await sessions.cancel_turn("s", turn_id="t1")  # the same again says the same
        await assert_cancelled(sessions, tmp_path)
        assert await second.stop() == 0


async def test_an_engine_that_dies_behind_a_cancel(tmp_path: Path) -> None:
    async with (
        private_engine(tmp_path / "engine.db") as engine,
        crash_client(engine, tmp_path) as sessions,
    ):
        worker = await start_worker(engine, tmp_path)
        await sessions.start_session("s", f"{SINGLE} hang")
        await until_paid(tmp_path)
        assert await sessions.cancel_turn("s", turn_id="t1")
        await engine.kill()
        await engine.restart()
        await assert_cancelled(sessions, tmp_path)
        assert await worker.stop() == 0


async def test_a_turn_whose_worker_is_dead_is_cancelled_by_the_next(tmp_path: Path) -> None:
    async with (
        private_engine(tmp_path / "engine.db") as engine,
        crash_client(engine, tmp_path) as sessions,
    ):
        first = await start_worker(engine, tmp_path)
        await sessions.start_session("s", "read hang")
        await until_paid(tmp_path)
        first.kill()
        await first.wait()
        second = await start_worker(engine, tmp_path)
        # The read would run again; the cancel is there first or stops that attempt.
        assert await sessions.cancel_turn("s")
        page = await sessions.list_messages("s")
        assert "pay (c): failed: the turn was cancelled" in page.messages[-1].text
        assert await second.stop() == 0
