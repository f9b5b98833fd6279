"""`dex-lite dev` serves one data file until it is told to stop."""

from __future__ import annotations

import asyncio
import enum
import signal
from pathlib import Path
from typing import Annotated

import typer

from dex_lite._address import check_address

DEFAULT_DATA_FILE = Path(".dex-lite/dev.db")


class LogFormat(enum.StrEnum):
    """How a log line looks."""

    TEXT = "text"
    JSON = "json"


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
    metrics_host: Annotated[str, typer.Option(help="The address of the metrics.")] = "127.0.0.1",
    log_format: Annotated[LogFormat | None, typer.Option(help="Log events to stderr.")] = None,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds that running Steps have to end when it stops.")
    ] = 10.0,
) -> None:
    """Serve a data file for development, until SIGINT or SIGTERM."""
    import uvloop  # here, so that `--help` does not wait for it

    is_new = not data.exists()
    # A Step is a few turns of the loop and little else, so the loop is a good part of its time.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(
            _serve(
                data, is_new, host, port, token_file, metrics_host, metrics_port, log_format, grace
            )
        )


async def _serve(
    data: Path,
    is_new: bool,
    host: str,
    port: int,
    token_file: Path | None,
    metrics_host: str,
    metrics_port: int | None,
    log_format: LogFormat | None,
    grace: float,
) -> None:
    # Here, so that `--help` does not wait for grpc.
    from dex_lite import EngineOptions, open_engine
    from dex_lite._logs import log_to

    if log_format is not None:
        log_to(log_format.value)

    check_address(host, port)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with open_engine(
        data,
        host=host,
        port=port,
        options=EngineOptions(drain_s=grace),
        token_file=token_file,
        metrics_host=metrics_host,
        metrics_port=metrics_port,
    ) as engine:
        print(
            f"dex-lite ready on {engine.address}, data in {data}{', a new file' if is_new else ''}",
            flush=True,
        )
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
