"""Engine, Worker process and web server of the demo."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
import uvicorn
from dex import AsyncClient, BlobCacheConfig, ClientOptions, Registry, WorkerTarget, open_blob_cache

import dex_lite
from dex_agents import AgentSessionClient
from dex_agents.testing import WorkerProcess
from dex_agents_google_adk.demo._agent import build_flow
from dex_agents_google_adk.demo._folder import data_folder
from dex_agents_google_adk.demo.web._app import web_app

HOST = "127.0.0.1"


def run() -> None:
    """Parse the command line and serve."""
    typer.run(_command)


def _command(
    port: Annotated[int, typer.Option("--port", help="Port of the page on 127.0.0.1.")] = 8800,
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder that keeps the sessions.")
    ] = None,
) -> None:
    """Serve the support agent with a page: its answers stream, its refunds wait for approval."""
    try:
        folder = data_folder(data, "dex-agents-demo-web-")
        asyncio.run(_serve(folder, port))
    except dex_lite.DexLiteError as error:
        typer.echo(f"The demo could not run: {error}; --data names another folder", err=True)
        raise typer.Exit(2) from None
    except (RuntimeError, OSError) as error:
        typer.echo(f"The demo could not run: {error}", err=True)
        raise typer.Exit(2) from None


async def _serve(folder: Path, port: int) -> None:
    with socket.socket() as page:
        page.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            page.bind((HOST, port))
        except OSError as error:
            raise RuntimeError(f"port {port}: {error.strerror}; choose one with --port") from None
        await _serve_page(folder, page)


@contextlib.contextmanager
def _stopped_by_signals(server: uvicorn.Server) -> Iterator[None]:
    """A signal ends the server only: uvicorn raises those that it got once more at its end."""

    def stop() -> None:
        server.should_exit = True

    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def _serve_page(folder: Path, page: socket.socket) -> None:
    async with dex_lite.open_engine(folder / "sessions.db") as engine:
        typer.echo("The Worker starts, which takes a few seconds …")
        worker = await WorkerProcess.start(
            "dex_agents_google_adk.demo._agent:build_flow",
            server_address=engine.address,
            data_dir=folder,
        )
        flow = build_flow(folder)
        client = AsyncClient(
            Registry([flow], allow_async_handlers=True),
            open_blob_cache(BlobCacheConfig(str(folder / "client-cache"), 64 * 1024 * 1024)),
            ClientOptions(server_address=engine.address, worker_target=WorkerTarget(pull=True)),
        )
        try:
            app = web_app(
                AgentSessionClient(client, flow),
                server_address=engine.address,
                hosts=(HOST, "localhost"),
            )
            # A page that is open reads its stream for as long as it may.
            config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
            server = uvicorn.Server(config)
            with _stopped_by_signals(server):
                typer.echo(f"http://{HOST}:{page.getsockname()[1]}   data in {folder}")
                await server.serve([page])
        finally:
            await client.close()
            await worker.stop()
