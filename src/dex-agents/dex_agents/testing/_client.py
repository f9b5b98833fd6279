"""A client of sessions that other processes serve."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import AsyncIterator

from dex import AsyncClient, BlobCacheConfig, ClientOptions, Registry, WorkerTarget, open_blob_cache

from dex_agents._arguments import check_instance, check_server_address, path_of
from dex_agents._session.client import AgentSessionClient
from dex_agents._session.flow import AgentSessionFlow

_CACHE_BYTES = 1 << 20


@contextlib.asynccontextmanager
async def session_client(
    flow: AgentSessionFlow,
    *,
    server_address: str,
    cache_dir: str | os.PathLike[str] | None = None,
) -> AsyncIterator[AgentSessionClient]:
    """A client for the block.

    Args:
        flow: The same one that a Worker serves; it says how the data of its sessions is read.
        server_address: ``host:port`` of the engine.
        cache_dir: Where the client keeps what it has read; a temporary folder by default.

    Raises:
        TypeError, ValueError: An argument is none.
    """
    check_instance("flow", flow, AgentSessionFlow, "adk_agent_session_flow() gives one")
    check_server_address(server_address)
    chosen = None if cache_dir is None else path_of("cache_dir", cache_dir)
    with contextlib.ExitStack() as stack:
        folder = chosen or stack.enter_context(tempfile.TemporaryDirectory(prefix="dex-client-"))
        cache = open_blob_cache(BlobCacheConfig(str(folder), _CACHE_BYTES))
        stack.callback(cache.close)
        options = ClientOptions(
            server_address=server_address, worker_target=WorkerTarget(pull=True)
        )
        client = AsyncClient(Registry([flow], allow_async_handlers=True), cache, options)
        try:
            yield AgentSessionClient(client, flow)
        finally:
            await client.close()
