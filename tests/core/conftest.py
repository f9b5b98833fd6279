"""An engine, an in-process Worker and a client around a scripted runner."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from dex import (
    AsyncClient,
    BlobCacheConfig,
    ClientOptions,
    Registry,
    WorkerTarget,
    open_blob_cache,
)

from core.scripted_runner import Answer, ScriptedRunner, Tool
from dex_agents import AgentSessionClient, AgentSessionFlow, AgentSessionOptions
from dex_agents.testing import PrivateEngine, private_engine, read_step_history, step_shape
from support.serving import serve_client

TURN_S = 40.0


@dataclass
class Stage:
    """A running Worker and a client of one scripted agent."""

    runner: ScriptedRunner
    flow: AgentSessionFlow
    sessions: AgentSessionClient
    client: AsyncClient
    engine: PrivateEngine

    async def shape(self, session_id: str) -> list[str]:
        """Step types in the order in which their Execute ended."""
        return step_shape(await read_step_history(self.engine.address, session_id))


class Stages:
    """Makes stages on one engine; a session id may be used once a test module."""

    def __init__(self, engine: PrivateEngine, folder: Path) -> None:
        self.engine = engine
        self.folder = folder
        self._count = 0

    @contextlib.asynccontextmanager
    async def play(
        self,
        script: Sequence[Answer],
        tools: dict[str, Tool] | None = None,
        *,
        options: AgentSessionOptions | None = None,
        interrupt_deadline: timedelta | None = None,
        flow_type: str = "",
        flow_class: type[AgentSessionFlow] = AgentSessionFlow,
        runner_class: type[ScriptedRunner] = ScriptedRunner,
    ) -> AsyncIterator[Stage]:
        """Serve a scripted agent for the block."""
        self._count += 1
        runner = runner_class(script, tools)
        flow = flow_class(
            runner,
            flow_type=flow_type or f"Scripted{self._count}x{id(runner)}",
            options=options,
            interrupt_deadline=interrupt_deadline,
        )
        folder = self.folder / f"c{self._count}"
        async with serve_client(self.engine.address, flow, folder) as client:
            yield Stage(runner, flow, AgentSessionClient(client, flow), client, self.engine)


@pytest.fixture
async def stages(tmp_path: Path) -> AsyncIterator[Stages]:
    """Stages on a private engine."""
    async with private_engine(tmp_path / "engine.db") as engine:
        yield Stages(engine, tmp_path)


@pytest.fixture
async def offline(tmp_path: Path) -> AsyncIterator[AgentSessionClient]:
    """A client of an engine that does not run."""
    options = AgentSessionOptions(max_message_bytes=1000)
    flow = AgentSessionFlow(ScriptedRunner([]), flow_type="Offline", options=options)
    registry = Registry([flow], allow_async_handlers=True)
    cache = open_blob_cache(BlobCacheConfig(str(tmp_path / "cache"), 1 << 20))
    target = ClientOptions(server_address="127.0.0.1:1", worker_target=WorkerTarget(pull=True))
    client = AsyncClient(registry, cache, target)
    yield AgentSessionClient(client, flow)
    await client.close()
