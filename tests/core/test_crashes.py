"""A Worker that is killed at each place where it hurts, and an engine that is killed in between."""

from __future__ import annotations

import signal
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from core.crash_agent import build_flow, ledger
from dex_agents import AgentSessionClient
from dex_agents.testing import (
    PrivateEngine,
    WorkerProcess,
    is_failpoint_reached,
    private_engine,
    session_client,
)

TURN_S = 60.0


def crash_client(
    engine: PrivateEngine, folder: Path
) -> AbstractAsyncContextManager[AgentSessionClient]:
    return session_client(
        build_flow(folder), server_address=engine.address, cache_dir=folder / "client-cache"
    )


async def start_worker(
    engine: PrivateEngine, folder: Path, failpoints: tuple[str, ...] = ()
) -> WorkerProcess:
    return await WorkerProcess.start(
        "core.crash_agent:build_flow",
        server_address=engine.address,
        data_dir=folder,
        failpoints=failpoints,
    )


SINGLE, REPEATABLE = "non_idempotent_write", "idempotent_write"


@pytest.mark.parametrize(
    ("place", "message", "answer", "paid"),
    [
        ("model.before_call", SINGLE, "succeeded", 1),
        ("model.after_call", SINGLE, "succeeded", 1),
        ("approval.open", f"{SINGLE} approve", "succeeded", 1),
        ("tool.before_call", SINGLE, "outcome_unknown", 0),
        ("tool.after_call", SINGLE, "outcome_unknown", 1),
        ("tool.after_call", REPEATABLE, "succeeded", 2),
        ("tool.before_call", "read", "succeeded", 1),
        ("resume.before", SINGLE, "succeeded", 1),
    ],
)
async def test_a_worker_that_is_killed_once(
    tmp_path: Path, place: str, message: str, answer: str, paid: int
) -> None:
    async with (
        private_engine(tmp_path / "engine.db") as engine,
        crash_client(engine, tmp_path) as sessions,
    ):
        first = await start_worker(engine, tmp_path, (place,))
        await sessions.start_session("s", message)
        assert await first.wait() == -signal.SIGKILL
        assert is_failpoint_reached(place, tmp_path)
        second = await start_worker(engine, tmp_path)
        snapshot = await sessions.wait_until_settled("s", turns_done=1, timeout_s=TURN_S)
        for pending in snapshot.pending_interrupts:
            await sessions.resolve_interrupt("s", pending.interrupt_id, approved=True)
        snapshot = await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert snapshot.last_turn is not None
        assert (snapshot.last_turn.final_text, snapshot.last_turn.error) == (answer, "")
        assert ledger(tmp_path).count("paid", key="s/t1/c") == paid
        assert len(ledger(tmp_path).entries()) - ledger(tmp_path).count("asked") == paid
        # The session goes on, and only the interrupted model call was made again.
        await sessions.send_user_message("s", "read")
        snapshot = await sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
        assert snapshot.last_turn is not None
        assert snapshot.last_turn.final_text == "succeeded"
        asked = ledger(tmp_path).count("asked")
        assert asked == (5 if place == "model.after_call" else 4)
        assert await second.stop() == 0


async def test_an_interrupt_and_its_answer_survive_the_engine(tmp_path: Path) -> None:
    async with (
        private_engine(tmp_path / "engine.db") as engine,
        crash_client(engine, tmp_path) as sessions,
    ):
        worker = await start_worker(engine, tmp_path)
        await sessions.start_session("s", f"{SINGLE} approve")
        snapshot = await sessions.wait_until_settled("s", turns_done=1, timeout_s=TURN_S)
        (pending,) = snapshot.pending_interrupts
        worker.kill()
        await worker.wait()
        await engine.kill()
        await engine.restart()
        worker = await start_worker(engine, tmp_path)
        assert (await sessions.get_agent_snapshot("s")).pending_interrupts == (pending,)
        await sessions.resolve_interrupt("s", pending.interrupt_id, approved=True)
        await engine.kill()
        await engine.restart()
        snapshot = await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert snapshot.last_turn is not None
        # An attempt that ran while the engine died may be unknown, and is never made again.
        assert snapshot.last_turn.final_text in ("succeeded", "outcome_unknown")
        assert ledger(tmp_path).count("paid") <= 1
        await worker.stop()


async def test_waits_of_one_response_are_stored_together_by_their_place(tmp_path: Path) -> None:
    async with (
        private_engine(tmp_path / "engine.db") as engine,
        crash_client(engine, tmp_path) as sessions,
    ):
        first = await start_worker(engine, tmp_path, ("model.after_call",))
        await sessions.start_session("s", f"{SINGLE} two approve")
        assert await first.wait() == -signal.SIGKILL
        second = await start_worker(engine, tmp_path)
        # The response that was lost has left nothing; the next one, with other ids, all it has.
        snapshot = await sessions.wait_until_settled("s", turns_done=1, timeout_s=TURN_S)
        waiting = snapshot.pending_interrupts
        assert [item.interrupt_id for item in waiting] == ["t1.1.0", "t1.1.1"]
        assert [item.tool_call_id for item in waiting] == ["a2", "b2"]
        await sessions.resolve_interrupt("s", "t1.1.1", approved=True)
        second.kill()
        await second.wait()
        third = await start_worker(engine, tmp_path)
        (left,) = (await sessions.get_agent_snapshot("s")).pending_interrupts
        assert (left.interrupt_id, left.tool_call_id) == ("t1.1.0", "a2")
        await sessions.resolve_interrupt("s", "t1.1.0", approved=False)
        snapshot = await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        assert snapshot.last_turn is not None
        # An attempt that ran when its Worker was killed is unknown, and is never made again.
        assert snapshot.last_turn.final_text in ("rejected,succeeded", "rejected,outcome_unknown")
        assert ledger(tmp_path).count("paid", key="s/t1/b2") <= 1
        assert ledger(tmp_path).count("paid", key="s/t1/a2") == 0
        assert await third.stop() == 0
