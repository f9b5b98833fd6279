"""`dex-lite dev` serves one data file until it is told to stop."""

from __future__ import annotations

import asyncio
import enum
import signal
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dex_lite._address import check_address

if TYPE_CHECKING:
    from dex_lite import RunningEngine

DEFAULT_DATA_FILE = Path(".dex-lite/dev.db")


class LogFormat(enum.StrEnum):
    """How a log line looks."""

    TEXT = "text"
    JSON = "json"


class DurabilityMode(enum.StrEnum):
    """What a commit waits for."""

    FULL = "full"
    NORMAL = "normal"


def dev(
    data: Annotated[Path, typer.Option(help="The data file; it is created.")] = DEFAULT_DATA_FILE,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 8801,
    host: Annotated[
        str, typer.Option("--host", "--bind", help="The address to serve on.")
    ] = "127.0.0.1",
    token_file: Annotated[
        Path | None,
        typer.Option(help="Valid bearer tokens, one a line; needed to serve beyond 127.0.0.1."),
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve Prometheus metrics there.")
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(help="The address of the metrics; beyond 127.0.0.1 they need a token.")
    ] = "127.0.0.1",
    log_format: Annotated[LogFormat | None, typer.Option(help="Log events to stderr.")] = None,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds that running Steps have to end when it stops.")
    ] = 10.0,
    retention: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds after which a closed run is deleted; else all are kept."),
    ] = None,
    durability: Annotated[
        DurabilityMode, typer.Option(help="normal: a power cut may lose the last moments.")
    ] = DurabilityMode.FULL,
) -> None:
    """Serve a data file for development, until SIGINT or SIGTERM."""
    import uvloop  # here, so that `--help` waits for none of these

    from dex_lite import EngineOptions, open_engine
    from dex_lite._logs import log_to

    if log_format is not None:
        log_to(log_format.value)
    check_address(host, port)
    options = EngineOptions(drain_s=grace, retention_s=retention, durability=durability.value)
    engine = open_engine(
        data,
        host=host,
        port=port,
        options=options,
        token_file=token_file,
        metrics_host=metrics_host,
        metrics_port=metrics_port,
    )
    shown = f"{data}" if data.exists() else f"{data}, a new file"
    # A Step is a few turns of the loop and little else, so the loop is a good part of its time.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(engine, shown, grace))


async def _serve(
    opening: AbstractAsyncContextManager[RunningEngine], shown: str, grace: float
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with opening as engine:
        print(f"dex-lite ready on {engine.address}, data in {shown}", flush=True)
        if engine.metrics_address is not None:
            print(f"metrics on http://{engine.metrics_address}/metrics", flush=True)
        stopped = asyncio.create_task(stop.wait())
        failed = asyncio.create_task(engine.wait_failed())
        try:
            await asyncio.wait((stopped, failed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            failed.cancel()
        if not stop.is_set():
            raise failed.result()
        print(f"dex-lite is stopping, running Steps have {grace:g} s to end", flush=True)
    print("dex-lite stopped", flush=True)
