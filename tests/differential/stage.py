"""An engine, a Worker process that serves all agents of the suite, and a client."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dex_agents import AgentSessionClient
from dex_agents.testing import (
    PrivateEngine,
    WorkerProcess,
    is_failpoint_reached,
    play_session,
    private_engine,
    session_client,
)
from differential.judge import PlainRun, judge
from differential.plans import plan_of
from differential.served import build_flow, world_file

SESSION_S = 100.0


@dataclass(frozen=True)
class Stage:
    """Plays sessions of the suite."""

    engine: PrivateEngine
    folder: Path
    sessions: AgentSessionClient

    async def check(self, session_id: str, plain: PlainRun, *, place: str = "") -> None:
        """Play a session and compare it; ``place`` is where something was killed meanwhile."""
        plan = plan_of(session_id)
        played = await play_session(
            self.sessions, session_id, plan.messages, answer=plan.answer, timeout_s=SESSION_S
        )
        file = world_file(self.folder, session_id)
        if place:
            assert is_failpoint_reached(place, self.folder), f"{place} was never passed"
        await judge(session_id, plain, played, file, was_killed=bool(place))


@contextlib.asynccontextmanager
async def open_stage(folder: Path, failpoints: Sequence[str] = ()) -> AsyncIterator[Stage]:
    """A stage for the block; a Worker that a failpoint kills is there again at once.

    Args:
        failpoints: As :func:`dex_agents.testing.failpoint_env` takes them; ``=engine`` at the end
            kills the engine, which the block has to restart.
    """
    folder.mkdir(parents=True, exist_ok=True)
    async with private_engine(folder / "engine.db") as engine:
        if any("=engine" in name for name in failpoints) and not engine.can_be_killed:
            raise RuntimeError("the engine named by the environment cannot be killed")
        worker = await WorkerProcess.start(
            "differential.served:build_flow",
            server_address=engine.address,
            data_dir=folder,
            failpoints=[name.replace("=engine", f"=kill:{engine.pid_file}") for name in failpoints],
            respawn=True,
        )
        try:
            flow = build_flow(folder)
            async with session_client(flow, server_address=engine.address) as sessions:
                yield Stage(engine, folder, sessions)
        finally:
            await worker.stop()
