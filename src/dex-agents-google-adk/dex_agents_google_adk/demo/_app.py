"""The demo's course: engine, Worker, conversation, approval, SIGKILL, second Worker, report."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import Annotated

import typer
from dex import AsyncClient, BlobCacheConfig, ClientOptions, Registry, WorkerTarget, open_blob_cache
from rich.console import Console
from rich.markup import escape

import dex_lite
from dex_agents import AgentSessionClient
from dex_agents.testing import WorkerProcess
from dex_agents_google_adk.demo._agent import (
    GEMINI_MODEL,
    build_flow,
    provider_file,
    uses_gemini,
)
from dex_agents_google_adk.demo._folder import data_folder
from dex_agents_google_adk.demo._provider import PaymentProvider
from dex_agents_google_adk.demo._report import broken_invariants, print_report
from dex_agents_google_adk.demo._screen import ConversationScreen

SESSION_ID = "session-42"
QUESTION = "Refund my last order, I am customer 9"
TURN_TIMEOUT_S = 180.0


def run() -> None:
    """Parse the command line and play the demo."""
    typer.run(_command)


def _command(
    yes: Annotated[bool, typer.Option("--yes", help="Approve the refund without asking.")] = False,
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder for the data; default: a new one.")
    ] = None,
) -> None:
    """Refund an order with an ADK agent, kill its Worker in the middle, and see it finish."""
    console = Console(highlight=False)
    try:
        if not yes and not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise RuntimeError(
                "nobody can be asked for the approval, as this is no terminal; --yes gives it"
            )
        folder = data_folder(data, "dex-agents-demo-")
        if (folder / "sessions.db").exists():
            raise RuntimeError(f"{folder} holds an earlier demo; name another folder with --data")
        logging.basicConfig(filename=folder / "demo.log")  # the engine's and the client's
        broken = asyncio.run(_play(console, folder, interactive=not yes))
    except (dex_lite.DexLiteError, RuntimeError, OSError) as error:
        console.print(f"[red]The demo could not run:[/] {escape(str(error))}")
        raise typer.Exit(2) from None
    except (KeyboardInterrupt, EOFError):
        console.print(f"\nStopped. The data stays in {escape(str(folder))}")
        raise typer.Exit(130) from None
    for text in broken:
        console.print(f"[red]broken:[/] {escape(text)}")
    raise typer.Exit(1 if broken else 0)


async def _play(console: Console, folder: Path, *, interactive: bool) -> list[str]:
    model = f"Gemini ({GEMINI_MODEL})" if uses_gemini() else "a scripted model, no key needed"
    console.print(f"model   {model}")
    if not uses_gemini():
        console.print("        set GOOGLE_API_KEY to talk to Gemini instead", style="dim")
    provider = PaymentProvider(provider_file(folder))
    console.print("engine  starts …", style="dim")
    async with dex_lite.open_engine(folder / "sessions.db") as engine:
        console.print(f"engine  {engine.address}, data in {folder / 'sessions.db'}")
        console.print("worker  starts, which takes a few seconds …", style="dim")
        worker = await _start_worker(engine.address, folder)
        try:
            console.print(f"worker  process {worker.pid}")
            flow = build_flow(folder)
            registry = Registry([flow], allow_async_handlers=True)
            cache = open_blob_cache(BlobCacheConfig(str(folder / "client-cache"), 64 * 1024 * 1024))
            client = AsyncClient(
                registry,
                cache,
                ClientOptions(server_address=engine.address, worker_target=WorkerTarget(pull=True)),
            )
            try:
                sessions = AgentSessionClient(client, flow)
                worker = await _converse(
                    console, sessions, provider, worker, engine.address, folder, interactive
                )
                snapshot = await sessions.get_agent_snapshot(SESSION_ID)
                await print_report(console, sessions, engine.address, SESSION_ID, provider)
            finally:
                await client.close()
        finally:
            await worker.stop()
    console.print(f"data    {folder} (session, payments, logs)")
    return broken_invariants(snapshot, provider)


async def _start_worker(address: str, folder: Path) -> WorkerProcess:
    return await WorkerProcess.start(
        "dex_agents_google_adk.demo._agent:build_flow", server_address=address, data_dir=folder
    )


async def _converse(
    console: Console,
    sessions: AgentSessionClient,
    provider: PaymentProvider,
    worker: WorkerProcess,
    address: str,
    folder: Path,
    interactive: bool,
) -> WorkerProcess:
    screen = ConversationScreen(console)
    screen.user(QUESTION)
    await sessions.start_session(SESSION_ID, QUESTION)
    showing = asyncio.create_task(screen.follow(sessions, SESSION_ID))
    try:
        killed = False
        turns = 1
        while True:
            snapshot = await sessions.wait_until_settled(
                SESSION_ID, turns_done=turns, timeout_s=TURN_TIMEOUT_S
            )
            await screen.settle()
            if snapshot.turns_done >= turns:
                reply = await screen.ask_user() if interactive else ""
                if not reply:
                    return worker
                screen.user(reply)
                await sessions.send_user_message(SESSION_ID, reply)
                turns += 1
                continue
            for interrupt in snapshot.pending_interrupts:
                approved = await screen.ask_approval(interrupt) if interactive else True
                if not interactive:
                    screen.auto_approved(interrupt)
                is_refund = interrupt.tool_name == "refund_order"
                await sessions.resolve_interrupt(
                    SESSION_ID,
                    interrupt.interrupt_id,
                    approved=approved,
                    message=None if approved else "The person at the terminal said no.",
                )
                if approved and is_refund and not killed:
                    killed = True
                    worker = await _kill_in_refund(screen, provider, worker, address, folder)
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)


async def _kill_in_refund(
    screen: ConversationScreen,
    provider: PaymentProvider,
    worker: WorkerProcess,
    address: str,
    folder: Path,
) -> WorkerProcess:
    async with asyncio.timeout(60):
        # The provider's file is the only witness outside the Worker.
        while not provider.refunds():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    worker.kill()
    await worker.wait()
    screen.note(f"SIGKILL: Worker {worker.pid} died while the refund ran")
    screen.note("another Worker starts …")
    replacement = await _start_worker(address, folder)
    screen.note(f"Worker {replacement.pid} takes over")
    return replacement
