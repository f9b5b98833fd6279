"""Every function of the client where nobody serves the session, or the engine hangs: it says so in time."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from core.conftest import TURN_S, Stages
from core.scripted_runner import Answer, Call, ScriptedRunner
from dex_agents import (
    AgentSessionClient,
    AgentSessionFlow,
    SessionUnavailableError,
    TurnWaitTimeoutError,
)
from dex_agents._session import connection
from dex_agents.testing import private_engine, session_client
from support.serving import serve

Use = Callable[[AgentSessionClient, str], Awaitable[Any]]
SCRIPT: list[Answer] = [[Call("pay", approval=True)], "done", "more"]
INTERRUPT = "t1.1.0"

# What needs a Worker, and the name of the id that makes the same call act once.
NEEDS_WORKER: dict[str, tuple[Use, str]] = {
    "send_user_message": (lambda c, s: c.send_user_message(s, "x"), "message_id"),
    "steer_user_message": (lambda c, s: c.steer_user_message(s, "x"), "message_id"),
    "get_agent_snapshot": (lambda c, s: c.get_agent_snapshot(s), ""),
    "cancel_turn": (lambda c, s: c.cancel_turn(s), ""),
    "cancel_turn of one": (lambda c, s: c.cancel_turn(s, turn_id="t1"), "turn_id"),
    "resolve_interrupt": (
        lambda c, s: c.resolve_interrupt(s, INTERRUPT, approved=True),
        "answer_id",
    ),
    "answer_question": (lambda c, s: c.answer_question(s, INTERRUPT, 1), "answer_id"),
    "provide_credential": (lambda c, s: c.provide_credential(s, INTERRUPT, "x"), "answer_id"),
    "rewind": (lambda c, s: c.rewind(s, "t1"), ""),
    "fork_session": (lambda c, s: c.fork_session(s, f"{s}-fork"), ""),
    "list_messages": (lambda c, s: c.list_messages(s), ""),
    "close_session": (lambda c, s: c.close_session(s), ""),
    "wait_for_turn that ended": (lambda c, s: c.wait_for_turn(s, 0, timeout_s=60), ""),
}
WAITS: dict[str, Use] = {
    "wait_for_turn": lambda c, s: c.wait_for_turn(s, 1, timeout_s=1),
    "wait_until_settled": lambda c, s: c.wait_until_settled(s, turns_done=1, timeout_s=1),
}


async def error_of(use: Use, client: AgentSessionClient, session_id: str) -> Exception:
    """What a function raises, within a time that no engine takes."""
    async with asyncio.timeout(TURN_S):
        try:
            await use(client, session_id)
        except Exception as error:
            return error
    pytest.fail("nothing was raised")


@contextlib.asynccontextmanager
async def left_alone(folder: Path) -> AsyncIterator[tuple[str, AgentSessionFlow]]:
    """An engine on which the session ``s`` waits for an approval and its Worker has stopped."""
    flow = AgentSessionFlow(ScriptedRunner(SCRIPT), flow_type="Alone")
    async with private_engine(folder / "e.db") as engine:
        async with serve(engine.address, flow, folder) as sessions:
            await sessions.start_session("s", "hi")
            await sessions.wait_until_settled("s", turns_done=1, timeout_s=TURN_S)
        yield engine.address, flow


async def test_what_needs_a_worker_names_session_queue_and_way_out(tmp_path: Path) -> None:
    flow = AgentSessionFlow(ScriptedRunner(SCRIPT), flow_type="Alone")
    async with (
        private_engine(tmp_path / "e.db") as engine,
        session_client(flow, server_address=engine.address) as client,
    ):
        # One session for each, as commands of one wait for each other.
        names = {name.replace(" ", "-"): use for name, (use, _) in NEEDS_WORKER.items()}
        for name in names:
            await client.start_session(name, "hi")
        errors = await asyncio.gather(*(error_of(use, client, n) for n, use in names.items()))
        for name, (_, command_id), error in zip(names, NEEDS_WORKER.values(), errors, strict=True):
            assert isinstance(error, SessionUnavailableError), (name, error)
            text = str(error)
            assert text.startswith(f"no Worker answered for session {name!r}: "), name
            assert (
                "; check that a Worker serves Flow type 'Alone', whose task queue its work waits in, "
                "at the same engine, then call again"
            ) in text, name
            assert bool(error.command_id) is bool(command_id), name
            if command_id:
                assert text.endswith(
                    f"with {command_id}={error.command_id!r} the same call again acts once"
                ), name


async def test_waits_end_in_time_and_say_that_nobody_serves_the_session(tmp_path: Path) -> None:
    async with (
        left_alone(tmp_path) as (address, flow),
        session_client(flow, server_address=address) as client,
    ):
        for name, use in WAITS.items():
            started = time.monotonic()
            error = await error_of(use, client, "s")
            assert isinstance(error, TurnWaitTimeoutError), (name, error)
            assert time.monotonic() - started < 8, name
            assert str(error).endswith(
                "in time: no Worker answers; check that a Worker serves Flow type 'Alone', whose task "
                "queue its work waits in, at the same engine; the session goes on, so wait again"
            ), name
        # What needs no Worker goes on.
        await client.start_session("other", "hi")
        assert (await anext(client.read_events("s"))).events
        # A Worker that comes within the time given is waited for.
        waiting = asyncio.create_task(
            client.wait_until_settled("other", turns_done=1, timeout_s=TURN_S)
        )
        async with serve(address, flow, tmp_path):
            assert (await waiting).pending_interrupts


async def test_an_engine_that_takes_calls_and_never_answers_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "ANSWER_S", 0.3)

    flow = AgentSessionFlow(ScriptedRunner(SCRIPT), flow_type="Silent")
    used: dict[str, Use] = {
        **{name: use for name, (use, _) in NEEDS_WORKER.items()},
        **WAITS,
        "start_session": lambda c, s: c.start_session(s, "hi"),
        "read_events": lambda c, s: anext(c.read_events(s)),
    }
    # It takes connections and never reads from one.
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        async with session_client(flow, server_address=address) as client:
            errors = await asyncio.gather(*(error_of(use, client, "s") for use in used.values()))
    for name, error in zip(used, errors, strict=True):
        if isinstance(error, TurnWaitTimeoutError):
            assert name in WAITS
            continue
        assert isinstance(error, SessionUnavailableError), (name, error)
        asked = "s-fork" if name == "fork_session" else "s"
        assert f"the engine did not answer for session '{asked}' within 0.3 s" in str(error), name


async def test_no_turn_at_all_is_waited_for_at_once(stages: Stages) -> None:
    async with stages.play(SCRIPT) as stage:
        await stage.sessions.start_session("s", "hi")
        snapshot = await stage.sessions.wait_for_turn("s", 0, timeout_s=TURN_S)
        assert snapshot.turns_done == 0
