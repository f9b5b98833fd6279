"""The Worker process of the demo: ``python -m dex_agents_google_adk.demo._worker SERVER PROVIDER_FILE CACHE_DIR``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from dex import AsyncWorker, BlobCacheConfig, Registry, open_blob_cache

from dex_agents import agent_worker_options
from dex_agents_google_adk.demo._agent import build_flow

READY_LINE = "worker ready"


async def serve(server_address: str, provider_file: Path, cache_dir: Path) -> None:
    """Serve the support agent until the process ends."""
    registry = Registry([build_flow(provider_file)], allow_async_handlers=True)
    cache = open_blob_cache(BlobCacheConfig(str(cache_dir), 64 * 1024 * 1024))
    worker = AsyncWorker(registry, cache, agent_worker_options(server_address))
    serving = asyncio.create_task(worker.start())
    await worker.wait_pull_registered(timeout=30)
    print(READY_LINE, flush=True)
    await serving


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
