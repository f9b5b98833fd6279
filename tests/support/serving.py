"""A Flow served by an in-process Worker, with a client of its sessions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from dex import (
    AsyncClient,
    AsyncWorker,
    BlobCacheConfig,
    ClientOptions,
    Registry,
    WorkerTarget,
    open_blob_cache,
)

from dex_agents import AgentSessionClient, AgentSessionFlow, agent_worker_options


@contextlib.asynccontextmanager
async def serve(
    address: str, flow: AgentSessionFlow, folder: Path
) -> AsyncIterator[AgentSessionClient]:
    """Serve ``flow`` for the block; the folder holds a cache."""
    async with serve_client(address, flow, folder / flow.get_flow_type()) as client:
        yield AgentSessionClient(client, flow)


@contextlib.asynccontextmanager
async def serve_client(
    address: str, flow: AgentSessionFlow, cache_folder: Path
) -> AsyncIterator[AsyncClient]:
    """The same, with the SDK's client."""
    registry = Registry([flow], allow_async_handlers=True)
    cache = open_blob_cache(BlobCacheConfig(str(cache_folder), 1 << 20))
    worker = AsyncWorker(registry, cache, agent_worker_options(address))
    serving = asyncio.create_task(worker.start())
    await worker.wait_pull_registered(timeout=30)
    options = ClientOptions(server_address=address, worker_target=WorkerTarget(pull=True))
    client = AsyncClient(registry, cache, options)
    try:
        yield client
    finally:
        await client.close()
        await worker.stop()
        await serving
