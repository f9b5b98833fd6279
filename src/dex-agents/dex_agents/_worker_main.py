"""One Worker process: ``python -m dex_agents._worker_main MODULE:FUNCTION SERVER CACHE_DIR [DATA_DIR]``."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import logging
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from dex import AsyncWorker, BlobCacheConfig, Flow, Registry, open_blob_cache

from dex_agents._worker import agent_worker_options

READY_LINE = "dex-agents worker ready"
_CACHE_BYTES = 64 * 1024 * 1024
_READY_WITHIN_S = 30


def build_flows(name: str, data_dir: Path | None) -> list[Flow[Any]]:
    """Call ``module:function``; a function with a parameter gets the data folder."""
    module_name, _, function_name = name.partition(":")
    function = getattr(importlib.import_module(module_name), function_name)
    built = function(data_dir) if inspect.signature(function).parameters else function()
    return list(built) if isinstance(built, list | tuple) else [built]


async def serve(flows: list[Flow[Any]], server_address: str, cache_dir: Path) -> None:
    """Serve until SIGTERM or SIGINT, then let running Steps end."""
    cache_dir.mkdir(parents=True, exist_ok=True)
    cache = open_blob_cache(BlobCacheConfig(str(cache_dir), _CACHE_BYTES))
    registry = Registry(flows, allow_async_handlers=True)
    worker = AsyncWorker(registry, cache, agent_worker_options(server_address))
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    serving = asyncio.create_task(worker.start())
    stop_wait = asyncio.create_task(stopping.wait())
    ready = asyncio.create_task(worker.wait_pull_registered(timeout=_READY_WITHIN_S))
    done, _ = await asyncio.wait({serving, ready, stop_wait}, return_when=asyncio.FIRST_COMPLETED)
    if ready in done:
        ready.result()
        print(f"{READY_LINE} {os.getpid()}", flush=True)
        await asyncio.wait({serving, stop_wait}, return_when=asyncio.FIRST_COMPLETED)
    ready.cancel()
    stop_wait.cancel()
    if not serving.done():
        await worker.stop()
    await serving


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run on uvloop where it is installed: a Worker's loop is most of its work."""
    if importlib.util.find_spec("uvloop") is None:
        asyncio.run(work)
        return
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


def main() -> None:
    """Entry of the process."""
    logging.basicConfig(
        level=os.environ.get("DEX_AGENTS_LOG_LEVEL", "WARNING"),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    name, server_address, cache_dir, *rest = sys.argv[1:]
    flows = build_flows(name, Path(rest[0]) if rest else None)
    run(serve(flows, server_address, Path(cache_dir)))


if __name__ == "__main__":
    main()
