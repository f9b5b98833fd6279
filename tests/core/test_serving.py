"""What a process needs to serve a Flow: one Registry, async handlers, task slots."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from dex import (
    AsyncClient,
    AsyncWorker,
    BlobCacheConfig,
    ClientOptions,
    Registry,
    WorkerTarget,
    open_blob_cache,
)

from core.conftest import TURN_S
from core.scripted_runner import Call, ScriptedRunner
from dex_agents import (
    AgentSessionClient,
    AgentSessionFlow,
    ToolEffect,
    ToolPolicy,
    agent_worker_options,
)
from dex_agents.testing import private_engine

CALLS = 8


def flow(flow_type: str, **tools: Any) -> AgentSessionFlow:
    return AgentSessionFlow(
        ScriptedRunner([[Call("look") for _ in range(CALLS)], "done"], tools), flow_type=flow_type
    )


def test_a_policy_takes_its_effect_by_position() -> None:
    assert ToolPolicy(ToolEffect.READ).requires_approval is None
    defaults = {effect: ToolPolicy(effect).needs_approval for effect in ToolEffect}
    assert defaults == {
        ToolEffect.READ: False,
        ToolEffect.IDEMPOTENT_WRITE: False,
        ToolEffect.NON_IDEMPOTENT_WRITE: True,
        ToolEffect.UNCLASSIFIED: True,
    }
    assert ToolPolicy(ToolEffect.READ, requires_approval=True).needs_approval
    assert not ToolPolicy(ToolEffect.UNCLASSIFIED, requires_approval=False).needs_approval
    wrong: Any = "read"
    with pytest.raises(TypeError, match="must be a ToolEffect, got 'read'"):
        ToolPolicy(wrong)


def test_a_registry_takes_each_flow_type_once_and_only_with_async_handlers() -> None:
    with pytest.raises(Exception, match="Same"):
        Registry([flow("Same"), flow("Same")], allow_async_handlers=True)
    with pytest.raises(Exception, match="must be synchronous"):
        Registry([flow("Sync")])


@pytest.mark.parametrize(("slots", "overlap"), [(CALLS + 2, CALLS), (2, 1)])
async def test_task_slots_bound_how_many_calls_overlap(
    tmp_path: Path, slots: int, overlap: int
) -> None:
    """A slot is kept free for RPCs; a batch that is larger than the rest still completes."""
    running, most = 0, 0
    together = asyncio.Event()

    async def look(call: Any) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == overlap:
            together.set()
        await asyncio.wait_for(together.wait(), TURN_S)
        running -= 1
        return "seen"

    served = flow("Slots", look=look)
    registry = Registry([served], allow_async_handlers=True)
    cache = open_blob_cache(BlobCacheConfig(str(tmp_path / "cache"), 1 << 20))
    async with private_engine(tmp_path / "engine.db") as engine:
        options = agent_worker_options(engine.address, max_concurrent_tasks=slots)
        worker = AsyncWorker(registry, cache, options)
        serving = asyncio.create_task(worker.start())
        await worker.wait_pull_registered(timeout=30)
        client = AsyncClient(
            registry,
            cache,
            ClientOptions(server_address=engine.address, worker_target=WorkerTarget(pull=True)),
        )
        sessions = AgentSessionClient(client, served)
        await sessions.start_session("s", "go")
        snapshot = await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        await client.close()
        await worker.stop()
        await serving
    assert snapshot.last_turn is not None
    assert snapshot.last_turn.final_text == "done"
    assert most == overlap
