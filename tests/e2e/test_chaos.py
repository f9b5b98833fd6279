"""The ADK agent under kills: a Worker at every failpoint, the engine at seeded moments.

One response calls a tool of every effect class; what ran and what the model was asked is judged from files that no
kill can touch (``invariants.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dex_agents import AgentMessage, AgentSessionClient
from dex_agents.testing import (
    PrivateEngine,
    WorkerProcess,
    is_failpoint_reached,
    play_session,
    private_engine,
    session_client,
)
from e2e.chaos_agent import build_flow
from e2e.invariants import (
    check_executions,
    check_messages,
    check_no_answer_asked_again,
    check_requests,
)

TURN_S = 60.0
ORDERS = ("order-1", "order-2")


@dataclass
class Scene:
    """One engine, one session's data and a client."""

    engine: PrivateEngine
    folder: Path
    sessions: AgentSessionClient

    async def worker(self, *failpoints: str) -> WorkerProcess:
        """Start a Worker process."""
        return await WorkerProcess.start(
            "e2e.chaos_agent:build_flow",
            server_address=self.engine.address,
            data_dir=self.folder,
            failpoints=failpoints,
        )

    async def drive(self) -> None:
        """Both turns to their end, with every approval given."""
        played = await play_session(self.sessions, "s", ORDERS, timeout_s=TURN_S)
        assert list(played.errors) == [""] * len(ORDERS)

    async def messages(self) -> list[AgentMessage]:
        """The whole stored history."""
        return list((await self.sessions.list_messages("s")).messages)


@contextlib.asynccontextmanager
async def scene(folder: Path) -> AsyncIterator[Scene]:
    """A private engine and a client."""
    async with (
        private_engine(folder / "engine.db") as engine,
        session_client(build_flow(folder), server_address=engine.address) as sessions,
    ):
        yield Scene(engine, folder, sessions)


async def check(stage: Scene, kills: int) -> dict[str, Counter[str]]:
    """Every invariant; returns executions by tool and order."""
    executed = check_executions(stage.folder, ORDERS)
    check_requests(stage.folder, executed)
    check_messages(await stage.messages(), ORDERS)
    check_no_answer_asked_again(stage.folder, kills)
    return executed


async def test_without_a_kill_everything_runs_once(tmp_path: Path) -> None:
    async with scene(tmp_path) as stage:
        worker = await stage.worker()
        await stage.drive()
        executed = await check(stage, 0)
        assert all(dict(counts) == dict.fromkeys(ORDERS, 1) for counts in executed.values())
        await worker.stop()


@pytest.mark.parametrize(
    "place",
    [
        "model.before_call",
        "model.after_call",
        "tool.before_call",
        "tool.after_call",
        "resume.before",
        "approval.open",
    ],
)
async def test_worker_killed_at_a_failpoint(tmp_path: Path, place: str) -> None:
    async with scene(tmp_path) as stage:
        first = await stage.worker(place)
        driving = asyncio.create_task(stage.drive())
        await first.wait()
        assert is_failpoint_reached(place, tmp_path)
        second = await stage.worker()
        await driving
        await check(stage, 1)
        await second.stop()


@pytest.mark.parametrize("seeds", [range(5), range(5, 10)], ids=["0-4", "5-9"])
async def test_engine_killed_at_a_seeded_moment(tmp_path: Path, seeds: range) -> None:
    # Side by side: most of the time goes into the SDK's reconnecting.
    folders = {seed: tmp_path / str(seed) for seed in seeds}
    for folder in folders.values():
        folder.mkdir()
    await asyncio.gather(*(_kill_engine(folder, seed) for seed, folder in folders.items()))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 300))
async def test_engine_killed_at_many_seeded_moments(tmp_path: Path, seed: int) -> None:
    await _kill_engine(tmp_path, seed)


async def _kill_engine(folder: Path, seed: int) -> None:
    async with scene(folder) as stage:
        if not stage.engine.can_be_killed:
            pytest.skip("the engine named by the environment cannot be killed")
        worker = await stage.worker()
        driving = asyncio.create_task(stage.drive())
        # Both turns take about 0.3 s undisturbed; the moment is the seed's, not a wait for something.
        await asyncio.sleep(random.Random(seed).uniform(0.0, 0.4))
        await stage.engine.kill()
        await stage.engine.restart()
        await driving
        executed = await check(stage, 2)
        # The Worker went on living: only the attempt in flight was lost, so a write may be unknown but never doubled.
        assert all(executed["charge"][order] <= 1 for order in ORDERS), f"seed {seed}"
        await worker.stop()
