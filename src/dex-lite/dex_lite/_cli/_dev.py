"""`dex-lite dev` serves one data file until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import typer

from dex_lite._address import check_address

DEFAULT_DATA_FILE = Path(".dex-lite/dev.db")


def dev(
    data: Annotated[Path, typer.Option(help="The data file; it is created.")] = DEFAULT_DATA_FILE,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 8801,
    host: Annotated[str, typer.Option(help="The address to serve on.")] = "127.0.0.1",
) -> None:
    """Serve a data file for development, until SIGINT or SIGTERM."""
    asyncio.run(_serve(data, host, port))


async def _serve(data: Path, host: str, port: int) -> None:
    # Here, so that `--help` does not wait for grpc.
    from dex_lite import open_engine

    check_address(host, port)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with open_engine(data, host=host, port=port) as engine:
        print(f"dex-lite ready on {engine.address}, data in {data}", flush=True)
        stopped = asyncio.create_task(stop.wait())
        failed = asyncio.create_task(engine.wait_failed())
        try:
            await asyncio.wait((stopped, failed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            failed.cancel()
        if not stop.is_set():
            raise failed.result()
        print("dex-lite is stopping", flush=True)
    print("dex-lite stopped", flush=True)
