"""A session of a scripted agent, and what it waits for."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from google.adk.apps.app import App
from google.adk.workflow import BaseNode

from dex_agents import AgentSessionClient, PendingInterrupt, ToolEffect
from dex_agents.testing import private_engine
from dex_agents_google_adk import adk_agent_session_flow
from support.serving import serve

TURN_S = 40.0


@contextlib.asynccontextmanager
async def session(
    root: BaseNode | App, folder: Path, **arguments: Any
) -> AsyncIterator[AgentSessionClient]:
    """Serve the agent and start the session ``s`` with the message ``go``."""
    flow = adk_agent_session_flow(
        root, flow_type="Waits", default_tool_effect=ToolEffect.READ, **arguments
    )
    async with (
        private_engine(folder / "e.db") as engine,
        serve(engine.address, flow, folder) as sessions,
    ):
        await sessions.start_session("s", "go")
        yield sessions


async def pending(sessions: AgentSessionClient, count: int = 1) -> list[PendingInterrupt]:
    """What the session waits for in its first turn, when so much waits."""
    while True:
        snapshot = await sessions.wait_until_settled("s", turns_done=1, timeout_s=TURN_S)
        assert snapshot.turns_done == 0, snapshot.last_turn
        if len(snapshot.pending_interrupts) == count:
            return list(snapshot.pending_interrupts)
