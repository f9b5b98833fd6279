"""Sessions with the tools of a real MCP server, served by real Worker processes.

Each case runs with our own source and with ADK's ``McpToolset``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from adk.mcp_agent import SERVER, asked_ledger, build_flow, configure, server_ledger
from dex_agents import OUTCOME_UNKNOWN_TOOL_RESULT, AgentSessionClient
from dex_agents.testing import (
    PrivateEngine,
    WorkerProcess,
    is_failpoint_reached,
    private_engine,
    read_step_history,
    session_client,
    step_shape,
)
from support.lasting_mcp_server import lasting_server
from support.polling import until
from support.ports import free_port, wait_for_port

TURN_S = 90.0
KINDS = ["source", "toolset"]
QUICK = ["source", pytest.param("toolset", marks=pytest.mark.long)]


class Place:
    """An engine, a folder, a client; Workers come and go."""

    def __init__(self, engine: PrivateEngine, folder: Path, sessions: AgentSessionClient) -> None:
        self.engine, self.folder, self.sessions = engine, folder, sessions
        self._workers: list[WorkerProcess] = []

    async def worker(self, *failpoints: str) -> WorkerProcess:
        worker = await WorkerProcess.start(
            "adk.mcp_agent:build_flow",
            server_address=self.engine.address,
            data_dir=self.folder,
            failpoints=failpoints,
        )
        self._workers.append(worker)
        return worker

    async def end(self) -> None:
        """Leave nothing behind, whatever the test left."""
        for worker in self._workers:
            worker.kill()
            await worker.wait()
        for pid in self.servers():
            os.kill(pid, signal.SIGKILL)

    async def answer(self, session_id: str, turn: int = 1) -> dict[str, Any]:
        """What the calls of the last response gave, by tool."""
        snapshot = await self.sessions.wait_for_turn(session_id, turn, timeout_s=TURN_S)
        assert snapshot.last_turn is not None
        assert not snapshot.last_turn.error, snapshot.last_turn.error
        return dict(json.loads(snapshot.last_turn.final_text))

    def servers(self) -> list[int]:
        """Processes of servers that still run."""
        pids = [e["pid"] for e in server_ledger(self.folder).entries() if e["name"] == "started"]
        return [pid for pid in pids if _runs(pid)]


def _runs(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


@contextlib.asynccontextmanager
async def place_of(folder: Path, **settings: Any) -> AsyncIterator[Place]:
    configure(folder, **settings)
    flow = build_flow(folder)
    async with (
        private_engine(folder / "engine.db") as engine,
        session_client(flow, server_address=engine.address) as sessions,
    ):
        place = Place(engine, folder, sessions)
        try:
            yield place
        finally:
            await place.end()


def script(*responses: list[tuple[str, str]]) -> str:
    return json.dumps(responses)


@pytest.mark.parametrize("kind", KINDS)
async def test_many_sessions_at_once_leave_no_process(kind: str, tmp_path: Path) -> None:
    async with place_of(tmp_path, kind=kind) as place:
        worker = await place.worker()
        names = [f"s{number}" for number in range(20)]
        await asyncio.gather(
            *(
                place.sessions.start_session(
                    name, script([("read", name), ("put", name)], [("add", name)])
                )
                for name in names
            )
        )
        for name, answer in zip(
            names, await asyncio.gather(*map(place.answer, names)), strict=True
        ):
            assert f"added {name}" in json.dumps(answer["add"])
        ledger = server_ledger(tmp_path)
        assert [ledger.count(n) for n in ("started", "read", "put", "add")] == [1, 20, 20, 20]
        shape = step_shape(await read_step_history(place.engine.address, "s0"))
        tools = ("CallTool", "CallSingleAttemptTool")
        assert [shape.count(name) for name in (*tools, "RunModel", "ResumeTurn")] == [2, 1, 3, 2]
        assert len(place.servers()) == 1
        assert await worker.stop() == 0
        await until(lambda: not place.servers())
        assert "cancel scope" not in worker.log_tail()


@pytest.mark.parametrize("kind", KINDS)
async def test_hints_and_results_over_http(kind: str, tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, str(SERVER), str(tmp_path), str(port)]
    path = os.pathsep.join(p or os.getcwd() for p in sys.path)
    server = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path})
    try:
        await wait_for_port(port)
        async with place_of(tmp_path, kind=kind, url=f"http://127.0.0.1:{port}/mcp") as place:
            worker = await place.worker()
            await place.sessions.start_session(
                "s", script([("read", "a"), ("both", "b"), ("put", "c"), ("fail", "d")])
            )
            snapshot = await place.sessions.wait_until_settled("s", turns_done=1, timeout_s=TURN_S)
            # A tool without a hint is not known, so a person is asked.
            (pending,) = snapshot.pending_interrupts
            assert pending.tool_name == "fail"
            await place.sessions.resolve_interrupt("s", pending.interrupt_id, approved=True)
            answer = await place.answer("s")
            assert "read a" in json.dumps(answer["read"])
            assert "put c" in json.dumps(answer["put"])
            assert "d s3cret" in json.dumps(answer["fail"])
            shape = step_shape(await read_step_history(place.engine.address, "s"))
            assert [shape.count(n) for n in ("CallTool", "CallSingleAttemptTool")] == [3, 1]
            assert await worker.stop() == 0
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize("kind", QUICK)
async def test_a_list_that_changes_over_a_restart_in_mid_turn(kind: str, tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text('["read", "put", "add"]')
    async with place_of(tmp_path, kind=kind) as place:
        first = await place.worker("resume.before")
        await place.sessions.start_session(
            "s", script([("put", "1"), ("read", "1")], [("read", "2"), ("put", "2")])
        )
        await first.wait()
        assert is_failpoint_reached("resume.before", tmp_path)
        await until(lambda: not place.servers())
        (tmp_path / "tools.json").write_text('["structured", "add", "put"]')
        second = await place.worker()
        answer = await place.answer("s")
        rounds = {e["round"]: e["tools"] for e in asked_ledger(tmp_path).entries()}
        if kind == "source":
            assert rounds[1] == ["add", "put", "read", "structured"]
            assert answer["read"] == {
                "error": "read did not run: its tool source does not offer this tool now."
            }
        else:
            assert rounds[1] == ["add", "put", "structured"]
            assert "no tool with that name" in json.dumps(answer["read"])
        assert "put 2" in json.dumps(answer["put"])
        ledger = server_ledger(tmp_path)
        assert [ledger.count("read", text=text) for text in "12"] == [1, 0]
        assert [ledger.count("put", text=text) for text in "12"] == [1, 1]
        await second.stop()
        await until(lambda: not place.servers())


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
async def test_a_silent_server_does_not_hold_up_the_turn(kind: str, tmp_path: Path) -> None:
    (tmp_path / "silent").touch()
    async with place_of(tmp_path, kind=kind, limit_s=5) as place:
        worker = await place.worker()
        await place.sessions.start_session("s", "[]")
        assert await place.answer("s") == {}
        assert [e["tools"] for e in asked_ledger(tmp_path).entries()] == [[]]
        await until(lambda: not place.servers())
        (tmp_path / "silent").unlink()
        await place.sessions.send_user_message("s", script([("read", "1")]))
        assert "read 1" in json.dumps(await place.answer("s", 2))
        assert await worker.stop() == 0
        await until(lambda: not place.servers())


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
async def test_a_worker_that_stops_while_it_ends_a_silent_server(kind: str, tmp_path: Path) -> None:
    (tmp_path / "silent").touch()
    async with place_of(tmp_path, kind=kind, limit_s=3) as place:
        worker = await place.worker()
        await place.sessions.start_session("s", "[]")
        assert await place.answer("s") == {}
        assert await worker.stop() == 0
        await until(lambda: not place.servers())


@pytest.mark.parametrize(
    ("kind", "transport"),
    [
        ("toolset", "stdio"),
        ("source", "http"),
        pytest.param("source", "stdio", marks=pytest.mark.long),
    ],
)
async def test_a_server_that_dies_in_a_call(kind: str, transport: str, tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        settings = {"kind": kind}
        if transport == "http":
            settings["url"] = await stack.enter_async_context(lasting_server(tmp_path))
        place = await stack.enter_async_context(place_of(tmp_path, **settings))
        worker = await place.worker()
        calls = script([("die", "1")], [("die_once", "2")], [("read", "3")])
        await place.sessions.start_session("s", calls)
        assert "read 3" in json.dumps((await place.answer("s"))["read"])
        # A write is not repeated, a read is; the connection is opened again for each.
        ledger = server_ledger(tmp_path)
        assert [ledger.count(name) for name in ("die", "die_once", "read")] == [1, 2, 1]
        assert ledger.count("started") == 3
        messages = (await place.sessions.list_messages("s")).messages
        responses = {
            message.tool_name: message.framework_item["content"]["parts"][0]["function_response"]
            for message in messages
            if message.role == "tool"
        }
        assert responses["die"]["response"] == {"error": OUTCOME_UNKNOWN_TOOL_RESULT}
        assert "alive 2" in json.dumps(responses["die_once"]["response"])
        assert await worker.stop() == 0
        if transport == "stdio":
            await until(lambda: not place.servers())


async def test_a_toolset_finds_the_session_of_a_server_that_started_anew(tmp_path: Path) -> None:
    async with (
        lasting_server(tmp_path) as url,
        place_of(tmp_path, kind="toolset", url=url) as place,
    ):
        worker = await place.worker()
        await place.sessions.start_session(
            "s", script([("die", "1")], [("read", "2")], [("die", "3")])
        )
        # Refused with the session of the server before, a read is sent again.
        assert OUTCOME_UNKNOWN_TOOL_RESULT in json.dumps((await place.answer("s"))["die"])
        assert server_ledger(tmp_path).count("read") == 1
        # Another turn lists the tools first.
        await place.sessions.send_user_message("s", script([("add", "4")]))
        assert "added 4" in json.dumps((await place.answer("s", 2))["add"])
        assert server_ledger(tmp_path).count("started") == 3
        assert await worker.stop() == 0


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
async def test_a_worker_that_stops_while_a_call_hangs(kind: str, tmp_path: Path) -> None:
    async with place_of(tmp_path, kind=kind) as place:
        worker = await place.worker()
        await place.sessions.start_session("s", script([("hang", "1")]))
        await until(lambda: server_ledger(tmp_path).count("hang"))
        await worker.stop(timeout_s=60)
        await until(lambda: not place.servers())


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
async def test_a_worker_that_is_killed_leaves_no_process(kind: str, tmp_path: Path) -> None:
    async with place_of(tmp_path, kind=kind) as place:
        worker = await place.worker()
        await place.sessions.start_session("s", script([("hang", "1")]))
        await until(lambda: server_ledger(tmp_path).count("hang"))
        worker.kill()
        await worker.wait()
        await until(lambda: not place.servers())
