"""The web demo: its page in a real browser, and its answers to what a page would not send."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
import uvicorn
from google.adk.agents import LlmAgent

import dex_lite
from dex_agents import AgentSessionClient, ToolEffect, ToolPolicy
from dex_agents.testing import private_engine
from dex_agents_google_adk import adk_agent_session_flow
from dex_agents_google_adk.demo._folder import data_folder
from dex_agents_google_adk.demo._model import scripted_support_model
from dex_agents_google_adk.demo.web._app import web_app
from dex_agents_google_adk.demo.web._serve import _command
from support.browser import open_browser
from support.processes import children_of, is_running
from support.serving import serve

QUESTION = "Refund my last order, I am <b>customer</b> 9"
TURN_S = 40.0


class Cutter:
    """Breaks the first answer of each kind of stream off, as a bad line would."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.parts_left = 12
        self.last_event_ids: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and "/turns/" in scope["path"]:
            self.last_event_ids += [
                value.decode() for name, value in scope["headers"] if name == b"last-event-id"
            ]
            send = self._cutting(send)
        await self._app(scope, receive, send)

    def _cutting(self, send: Any) -> Any:
        async def cut(message: Any) -> None:
            if message["type"] == "http.response.body" and self.parts_left:
                self.parts_left -= 1
                if not self.parts_left:
                    raise ConnectionError("the line broke")
            await send(message)

        return cut


class ReadyServer(uvicorn.Server):
    """Says when it takes requests."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_ready.set()


@dataclass
class Web:
    """A served application."""

    url: str
    sessions: AgentSessionClient
    cutter: Cutter
    refunds: list[str] = field(default_factory=list)


@contextlib.asynccontextmanager
async def serve_web(folder: Path) -> AsyncIterator[Web]:
    refunds: list[str] = []

    def search_orders(customer_id: str) -> list[dict[str, str]]:
        """List a customer's orders."""
        return [{"order_id": "7", "status": "delivered", "customer_id": customer_id}]

    def refund_order(order_id: str) -> str:
        """Refund one order."""
        refunds.append(order_id)
        return f"order {order_id} refunded"

    agent = LlmAgent(
        name="support", model=scripted_support_model(), tools=[search_orders, refund_order]
    )
    flow = adk_agent_session_flow(
        agent,
        flow_type="WebSupport",
        tool_policies={
            "search_orders": ToolPolicy(ToolEffect.READ),
            "refund_order": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE, requires_approval=True),
        },
    )
    async with (
        private_engine(folder / "engine.db") as engine,
        serve(engine.address, flow, folder) as sessions,
    ):
        cutter = Cutter(web_app(sessions, server_address=engine.address))
        config = uvicorn.Config(cutter, host="127.0.0.1", port=0, log_level="critical")
        server = ReadyServer(config)
        serving = asyncio.create_task(server.serve())
        async with asyncio.timeout(TURN_S):
            await server.is_ready.wait()
        port = server.servers[0].sockets[0].getsockname()[1]
        try:
            yield Web(f"http://127.0.0.1:{port}", sessions, cutter, refunds)
        finally:
            server.should_exit = True
            server.force_exit = True
            await serving


async def test_the_page_streams_a_turn_and_approves_a_call(tmp_path: Path) -> None:
    async with serve_web(tmp_path) as web, open_browser(tmp_path / "profile") as browser:
        await browser.open(f"{web.url}/#session-1")
        await browser.type("#text", QUESTION)
        await browser.click("#send")
        await browser.wait_for(".call.asking")
        if folder := os.environ.get("SCREENSHOTS"):
            await browser.screenshot(Path(folder) / "asking.png")
        assert await browser.text(".user") == QUESTION
        assert await browser.text("#state") == "waits for you"
        assert web.refunds == []
        # Another window of the same session sees the same.
        await browser.open("about:blank")
        await browser.open(f"{web.url}/#session-1")
        assert await browser.text(".user") == QUESTION
        await browser.click(".call.asking .buttons .main")
        await browser.wait_for("section:nth-of-type(3) .text")
        await browser.wait_for("#stop[hidden]")
        if folder:
            await browser.screenshot(Path(folder) / "done.png")
        texts = await browser.run(
            "return [...document.querySelectorAll('.answer .text')].map((p) => p.textContent.trim())"
        )
        # The line broke in the middle of the first stream; nothing came twice and nothing is missing.
        assert texts == [
            "Let me look at your orders.",
            "Your last order is number 7. I will ask for its refund.",
            "Done: order 7 refunded.",
        ]
        assert web.cutter.last_event_ids
        calls = await browser.run(
            "return [...document.querySelectorAll('.call')].map((c) => c.innerText.split('\\n')[0])"
        )
        assert calls == ["search_orders", "refund_order"]
        assert await browser.run("return document.querySelectorAll('.buttons').length") == 0
        assert web.refunds == ["7"]
        # What is loaded again is what is stored.
        await browser.open("about:blank")
        await browser.open(f"{web.url}/#session-1")
        await browser.wait_for(".answer:last-child .text")
        assert "Done: order 7 refunded." in await browser.text("#log")
        assert await browser.run("return document.querySelector('#log b')") is None


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[tuple[Web, httpx.AsyncClient]]:
    async with serve_web(tmp_path) as served:
        served.cutter.parts_left = 0
        async with httpx.AsyncClient(base_url=served.url, timeout=TURN_S, trust_env=False) as http:
            yield served, http


async def test_the_api_by_itself(web: tuple[Web, httpx.AsyncClient]) -> None:
    served, http = web
    page = await http.get("/")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert "http" not in page.text.replace(".http", ""), "the page loads nothing from elsewhere"
    session = "/api/sessions/s"
    assert (await http.get(session)).status_code == 404
    message = {"text": QUESTION, "messageId": "m1"}
    for _ in range(2):  # the first answer was lost
        sent = await http.post(f"{session}/messages", json=message)
        assert sent.json() == {"messageId": "m1"}
    other = await http.post(f"{session}/messages", json={**message, "text": "other"})
    assert other.status_code == 409
    snapshot = await served.sessions.wait_until_settled("s", turns_done=1, timeout_s=TURN_S)
    (pending,) = snapshot.pending_interrupts
    assert (await http.get(session)).json()["status"] == "waiting"
    answer = f"{session}/interrupts/{pending.interrupt_id}"
    wrong = await http.post(answer, json={"approved": True, "argumentsDigest": "0" * 64})
    assert wrong.status_code == 409
    assert "other arguments" in wrong.json()["error"]
    assert (await http.post(answer, json={"approved": "yes"})).status_code == 400
    assert (await http.post(answer, json={"approved": False})).json() == {}
    stream = await http.get(f"{session}/messages/m1/turn")
    assert (await http.get(f"{session}/turns/t1")).text == stream.text
    assert (await http.get(f"{session}/messages/m2/turn")).status_code == 400
    assert (await served.sessions.get_agent_snapshot("s")).turns_done == 1
    assert stream.headers["content-type"].startswith("text/event-stream")
    lines = [line[6:] for line in stream.text.splitlines() if line.startswith("data: {")]
    assert json.loads(lines[-1])["finishReason"] == "stop"
    assert served.refunds == []
    picture = await http.get(f"{session}/history.svg")
    assert picture.headers["content-type"] == "image/svg+xml"
    assert "refund_order" in picture.text
    assert (await http.post(f"{session}/cancel", json={})).json() == {"cancelled": False}
    shown = (await http.get(session)).json()
    assert [message["role"] for message in shown["messages"]][:2] == ["user", "assistant"]


async def test_what_is_refused(web: tuple[Web, httpx.AsyncClient]) -> None:
    sessions = "/api/sessions"
    cases: list[tuple[str, str, dict[str, Any], int]] = [
        ("POST", f"{sessions}/s/messages", {"data": {"text": "a form"}}, 400),
        ("POST", f"{sessions}/s/messages", {"json": ["no object"]}, 400),
        ("POST", f"{sessions}/s/messages", {"json": {"text": "x" * 300_000}}, 400),
        ("POST", f"{sessions}/s/messages", {"json": {}}, 400),
        ("POST", f"{sessions}/a:b/messages", {"json": {"text": "x"}}, 400),
        ("GET", f"{sessions}/none/turns/t1", {}, 404),
        ("GET", f"{sessions}/none/history.svg", {}, 404),
        ("GET", "/", {"headers": {"host": "evil.example"}}, 400),
    ]
    for method, path, given, status in cases:
        answer = await web[1].request(method, path, **given)
        assert answer.status_code == status, (path, given, answer.text)


def test_a_taken_port_and_a_used_folder_are_refused_with_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(typer.Exit):
            _command(port, tmp_path)
    assert "choose one with --port" in capsys.readouterr().err

    async def use() -> None:
        async with dex_lite.open_engine(tmp_path / "sessions.db"):
            with pytest.raises(typer.Exit):
                await asyncio.to_thread(_command, 0, tmp_path)

    asyncio.run(use())
    assert "--data names another folder" in capsys.readouterr().err


async def test_a_signal_to_the_demo_ends_its_worker_too(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from dex_agents_google_adk.demo.web import main; main()",
        "--port",
        "0",
        "--data",
        str(tmp_path),
        env={k: v for k, v in os.environ.items() if k != "GOOGLE_API_KEY"},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    async with asyncio.timeout(TURN_S * 2):
        while b"http://" not in await process.stdout.readline():
            pass
        (worker,) = children_of(process.pid)
        process.terminate()
        assert await process.wait() == 0
        # Not by itself a moment later, but stopped, with the Steps that it runs.
        assert not is_running(worker)


def test_data_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for place in (file, file / "below"):
        with pytest.raises(RuntimeError, match=r"--data names a folder, and .*file"):
            data_folder(place, "unused")
    assert data_folder(tmp_path / "a" / "b", "unused").is_dir()
