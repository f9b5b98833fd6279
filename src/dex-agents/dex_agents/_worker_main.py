"""One Worker process: ``python -m dex_agents._worker_main MODULE:FUNCTION SERVER CACHE_DIR``."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import importlib
import inspect
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dex import AsyncWorker, BlobCacheConfig, Flow, Registry, open_blob_cache

from dex_agents._arguments import check_function_path
from dex_agents._quiet_logs import LostEngineFilter, RepeatFilter
from dex_agents._worker import CANNOT_BUILD_CODE, agent_worker_options, run_with_uvloop

READY_LINE = "dex-agents worker ready"
_CACHE_BYTES = 64 * 1024 * 1024
_READY_WITHIN_S = 30
_CONNECT_WITHIN_S = 5.0
_CONNECT_EVERY_S = 0.5
_LOOK_EVERY_S = 1.0
_CLEAN_UP_WITHIN_S = 10.0
_NEW_OBJECTS = 20_000  # between two runs of the collector of cycles
_LOGGER = logging.getLogger("dex_agents")


_MISTAKES = (ImportError, SyntaxError, NameError, AttributeError, TypeError, ValueError)
"""What the code that builds the Flows raises at every start."""


class NoFlowsError(ValueError):
    """The name of the Flows names no function, or one that gives no Flows."""


def build_flows(name: str, data_dir: Path | None) -> list[Flow[Any]]:
    """Call ``module:function``; a function that takes an argument gets the data folder.

    Raises:
        NoFlowsError: The module has no such function, or it gives no Flows.
        ValueError: The name is not of that form, or there is no folder for it.
    """
    check_function_path("flows", name)
    module_name, _, function_name = name.partition(":")
    function = getattr(importlib.import_module(module_name), function_name, None)
    if not callable(function):
        raise NoFlowsError(f"module {module_name!r} has no function {function_name!r}")
    return call_builder(function, data_dir)


def call_builder(function: Callable[..., Any], data_dir: Path | None) -> list[Flow[Any]]:
    """Call a function that builds one Flow or several; see :func:`build_flows`."""
    positional = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    name = f"{function.__module__}:{function.__qualname__}"
    if data_dir is not None and positional:
        built = function(data_dir)
    elif any(parameter.default is parameter.empty for parameter in positional):
        raise ValueError(f"{name} wants a data folder, and this Worker was started without one")
    else:
        built = function()
    flows = list(built) if isinstance(built, list | tuple) else [built]
    wrong = [type(flow).__name__ for flow in flows if not isinstance(flow, Flow)]
    if wrong or not flows:
        given = wrong[0] if wrong else "an empty list"
        raise NoFlowsError(f"{name} gave {given}; it has to return a Flow or a list of Flows")
    return flows


async def serve(
    flows: list[Flow[Any]],
    server_address: str,
    cache_dir: Path,
    lost_engine: LostEngineFilter,
    *,
    stop_with_stdin: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT, then let running Steps end.

    Args:
        lost_engine: Knows when the log says that the engine is away.
        stop_with_stdin: Stop also when stdin ends, which it does when the parent is gone.
    """
    stopping = _stop_event(stop_with_stdin)
    if not await _wait_for_engine(server_address, stopping):
        return
    cache = open_blob_cache(BlobCacheConfig(str(cache_dir), _CACHE_BYTES))
    registry = Registry(flows, allow_async_handlers=True)
    worker = AsyncWorker(registry, cache, agent_worker_options(server_address))
    serving = asyncio.create_task(worker.start())
    registered = asyncio.create_task(worker.wait_pull_registered(timeout=_READY_WITHIN_S))
    stopped = asyncio.create_task(stopping.wait())
    watching = asyncio.create_task(_tell_when_back(worker, server_address, lost_engine))
    try:
        await asyncio.wait({serving, registered, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if registered.done() and not stopped.done():
            registered.result()
            print(f"{READY_LINE} {os.getpid()}", flush=True)
            await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
            return
        if registered.done():
            await worker.stop()
            await serving
    finally:
        tasks = (serving, registered, stopped, watching)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await worker.close()
        cache.close()
        await _let_cancelled_tasks_end()


async def _tell_when_back(
    worker: AsyncWorker, server_address: str, lost_engine: LostEngineFilter
) -> None:
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        queues = worker.pull_registration_state().queues
        if lost_engine.is_lost and all(queue.has_registered_stream for queue in queues):
            lost_engine.is_lost = False
            _LOGGER.warning(
                "the engine at %s is back; the Worker takes tasks again", server_address
            )


async def _let_cancelled_tasks_end() -> None:
    """Give tasks that clean up after a cancellation the time to do so.

    The end of the loop cancels everything once more. A task that is just ending the process of an
    MCP server would be cut off, and leave that process, or hang.
    """
    cleaning = {task for task in asyncio.all_tasks() if task.cancelling()}
    cleaning.discard(asyncio.current_task())
    if cleaning:
        await asyncio.wait(cleaning, timeout=_CLEAN_UP_WITHIN_S)


async def _wait_for_engine(server_address: str, stopping: asyncio.Event) -> bool:
    """Wait until something listens there; ``False`` if the process shall stop before.

    The SDK would report an engine that is not up as one of an incompatible version.
    """
    host, _, port = server_address.rpartition(":")
    is_told = False
    while not stopping.is_set():
        try:
            _, writer = await asyncio.wait_for(
                asyncio.open_connection(host.strip("[]"), int(port)), _CONNECT_WITHIN_S
            )
        except (OSError, TimeoutError) as error:
            if not is_told:
                _LOGGER.warning(
                    "no engine at %s (%s); start one, for example with dex-lite dev; waiting",
                    server_address,
                    error,
                )
                is_told = True
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), _CONNECT_EVERY_S)
            continue
        writer.close()
        return True
    return False


def _stop_event(stop_with_stdin: bool) -> asyncio.Event:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    if stop_with_stdin:
        stdin = _take_stdin()

        def drop_input() -> None:
            if not os.read(stdin, 4096):
                loop.remove_reader(stdin)
                stopping.set()

        loop.add_reader(stdin, drop_input)
    return stopping


def _take_stdin() -> int:
    """Keep stdin for this process: a command that a tool runs would wait on it for ever."""
    taken = os.dup(sys.stdin.fileno())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)
    return taken


def main() -> None:
    """Entry of the process."""
    parser = argparse.ArgumentParser(prog="python -m dex_agents._worker_main")
    parser.add_argument("flows", help="module:function")
    parser.add_argument("server", help="host:port")
    parser.add_argument("cache_dir", type=Path)
    parser.add_argument("data_dir", type=Path, nargs="?")
    parser.add_argument("--stop-with-stdin", action="store_true", help="stop when stdin ends")
    given = parser.parse_args()
    logging.basicConfig(
        level=os.environ.get("DEX_AGENTS_LOG_LEVEL", "WARNING"),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    lost_engine = LostEngineFilter(given.server)
    for handler in logging.getLogger().handlers:
        handler.addFilter(lost_engine)
        handler.addFilter(RepeatFilter())
    given.cache_dir.mkdir(parents=True, exist_ok=True)
    try:
        flows = build_flows(given.flows, given.data_dir)
    except NoFlowsError as error:
        _LOGGER.error("%s", error)
        sys.exit(CANNOT_BUILD_CODE)
    except _MISTAKES as error:
        _LOGGER.error("%s cannot build its Flows", given.flows, exc_info=error)
        sys.exit(CANNOT_BUILD_CODE)
    # What is there by now, mostly modules, stays for good. The collector would go through all of it
    # again and again, as each turn of a long session makes and drops ten thousands of objects; so
    # it would through what the process keeps of its sessions, at Python's own threshold of 700.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS)
    run_with_uvloop(
        serve(
            flows,
            given.server,
            given.cache_dir,
            lost_engine,
            stop_with_stdin=given.stop_with_stdin,
        )
    )


if __name__ == "__main__":
    main()
