"""The chat endpoint of the guide, called as ``useChat`` calls it and read by the real AI SDK."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette

from core.conftest import TURN_S, Stage, Stages, stages
from core.scripted_runner import Answer, Call
from core.test_cancel import Hold
from dex_agents import AgentSessionClient, DeferredToolExecution
from dex_agents.ui_stream import AiSdkEncoder, open_ui_stream
from docs.test_code_blocks import read_blocks
from support.ai_sdk import read_streams
from support.requirements import REPOSITORY
from web_demo.test_web_demo import ReadyServer

__all__ = ["stages"]
PAGE = REPOSITORY / "docs/guide/ui-streams.md"
SCRIPT: list[Answer] = ["Hello.", [Call("pay", approval=True)], "It is paid."]


async def pay(call: DeferredToolExecution) -> Any:
    return "paid"


def app_of_the_page() -> Callable[[AgentSessionClient], Starlette]:
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert found
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(found[1], str(PAGE), "exec"), names)
    build: Callable[[AgentSessionClient], Starlette] = names["chat_app"]
    return build


async def test_the_chat_endpoint_of_the_page(stages: Stages) -> None:
    async with stages.play(SCRIPT, {"pay": pay}) as stage:
        transport = httpx.ASGITransport(app_of_the_page()(stage.sessions))
        async with httpx.AsyncClient(transport=transport, base_url="http://page") as http:

            async def post(*messages: Any) -> str:
                body = {"id": "chat", "messages": list(messages), "trigger": "submit-message"}
                answer = await http.post("/api/chat", json=body, timeout=TURN_S)
                assert answer.headers["x-vercel-ai-ui-message-stream"] == "v1"
                return answer.text

            begun = said("m1", "hi")
            # The line broke, and the client sends its first message once more.
            greeted, again = await post(begun), await post(begun)
            assert greeted == again
            (hello,) = read_streams([(7, [greeted])])
            assert [part["text"] for part in hello.parts("text")] == ["Hello."]
            asked = said("m2", "pay it")
            first = await post(begun, hello.message, asked)
            (paused,) = read_streams([(7, [first])])
            (call,) = paused.parts("dynamic-tool")
            assert call["state"] == "approval-requested"
            call["state"], call["approval"]["approved"] = "approval-responded", True
            second = await post(begun, hello.message, asked, paused.message)
            (done,) = read_streams([(7, [first, second])])
            assert [part["text"] for part in done.parts("text")] == ["It is paid."]
            assert done.parts("dynamic-tool")[0]["output"] == "paid"


def said(message_id: str, text: str) -> Any:
    return {"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]}


def answer_of(text: str) -> str:
    (read,) = read_streams([(7, [text])])
    assert read.errors == []
    return "".join(part["text"] for part in read.parts("text"))


@contextlib.asynccontextmanager
async def chat_of_the_page(stage: Stage) -> AsyncIterator[Callable[..., Any]]:
    """Posts messages to the endpoint, each as the newest one of a chat."""
    transport = httpx.ASGITransport(app_of_the_page()(stage.sessions))
    async with httpx.AsyncClient(transport=transport, base_url="http://page") as http:

        async def post(*messages: Any, status: int = 200) -> str:
            body = {"id": "chat", "messages": list(messages)}
            async with asyncio.timeout(TURN_S):
                answer = await http.post("/api/chat", json=body)
            assert answer.status_code == status, answer.text
            return answer.text

        yield post


async def test_each_message_gets_its_own_answer(stages: Stages) -> None:
    """Sent again, and two at the same moment."""
    async with (
        stages.play(["one", "two", "three", "four"]) as stage,
        chat_of_the_page(stage) as post,
    ):
        first = said("m1", "first")
        assert answer_of(await post(first)) == "one"
        for _ in range(2):
            assert answer_of(await post(first, said("m2", "second"))) == "two"
        both = await asyncio.gather(
            post(first, said("m3", "third")), post(first, said("m4", "fourth"))
        )
        page = await stage.sessions.list_messages("chat", turns=10)
        answers = {m.turn_id: m.text for m in page.messages if m.role == "assistant"}
        asked = {m.text: m.turn_id for m in page.messages if m.role == "user"}
        assert [answer_of(text) for text in both] == [
            answers[asked["third"]],
            answers[asked["fourth"]],
        ]
        assert asked["third"] != asked["fourth"]
        for message in (first, said("m2", "second")):
            again = [first, message] if message is not first else [first]
            assert answer_of(await post(*again)) == answers[asked[message["parts"][0]["text"]]]
        assert (await stage.sessions.get_agent_snapshot("chat")).turns_done == 4


async def test_a_message_behind_one_that_steers(stages: Stages) -> None:
    hold = Hold()
    async with (
        stages.play([[Call("hold")], "one", "two"], {"hold": hold}) as stage,
        chat_of_the_page(stage) as post,
    ):
        first = said("m1", "first")
        opened = asyncio.create_task(post(first))
        await hold.reached()
        await stage.sessions.steer_user_message("chat", "left", message_id="steer")
        await stage.sessions.send_user_message("chat", "second", message_id="m2")
        assert await stage.sessions.get_message_turn("chat", "m1") == "t1"
        assert await stage.sessions.get_message_turn("chat", "steer") == ""
        later = asyncio.create_task(post(first, said("m2", "second")))
        steered = await open_ui_stream(
            stage.sessions, "chat", AiSdkEncoder("chat"), message_id="steer", keep_alive_s=0.05
        )
        assert await anext(steered) == ": waiting\n\n"
        hold.may_go.set()
        async with asyncio.timeout(TURN_S):
            frames = "".join([frame async for frame in steered])
        assert answer_of(await opened) == answer_of(frames) == "one"
        assert answer_of(await later) == "two"
        assert await stage.sessions.get_message_turn("chat", "steer") == "t1"
        assert await stage.sessions.get_message_turn("chat", "none") is None


async def test_an_approval_that_comes_again_after_a_later_turn(stages: Stages) -> None:
    script: list[Answer] = [[Call("pay", approval=True)], "It is paid.", "later"]
    async with stages.play(script, {"pay": pay}) as stage, chat_of_the_page(stage) as post:
        first = said("m1", "pay it")
        (paused,) = read_streams([(7, [await post(first)])])
        (call,) = paused.parts("dynamic-tool")
        call["state"], call["approval"]["approved"] = "approval-responded", True
        second = await post(first, paused.message)
        assert answer_of(await post(first, paused.message, said("m2", "more"))) == "later"
        assert await post(first, paused.message) == second
        call["approval"]["id"] = "t7.1.0"
        assert "never asked" in await post(first, paused.message, status=400)


async def test_mistakes_of_a_client(stages: Stages) -> None:
    async with stages.play(["one"]) as stage, chat_of_the_page(stage) as post:
        first = said("m1", "first")
        await post(first, said("m2", "x"), status=404)
        await post(first)
        await post(said("m1", "other"), status=409)
        await post(said("m9", "first"), status=409)
        await post(first, said("m1", "other"), status=409)
        await post(first, said("m2", ""), status=400)
        await stage.sessions.close_session("chat")
        await post(first, said("m2", "x"), status=410)


async def test_bodies_that_are_no_chat_are_refused(stages: Stages) -> None:
    async with stages.play([]) as stage:
        transport = httpx.ASGITransport(app_of_the_page()(stage.sessions))
        async with httpx.AsyncClient(transport=transport, base_url="http://page") as http:
            for body in (
                "",
                "[]",
                '{"id": "chat"}',
                '{"messages": []}',
                '{"id": "chat", "messages": []}',
                '{"id": "chat", "messages": [{"id": "m1"}]}',
                '{"id": "chat", "messages": [{"id": "m1", "parts": ["hi"]}]}',
            ):
                answer = await http.post("/api/chat", content=body)
                assert answer.status_code == 400, body
                assert "must be an object with id and messages" in answer.json()["error"]


async def test_the_client_of_the_page_goes_on(stages: Stages, tmp_path: Path) -> None:
    (code,) = (b.code for b in read_blocks(PAGE) if b.code.startswith("# chat_client.py"))
    (tmp_path / "chat_client.py").write_text(code)
    async with stages.play(["Hello."]) as stage:
        app = app_of_the_page()(stage.sessions)
        config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical")
        server = ReadyServer(config)
        serving = asyncio.create_task(server.serve())
        async with asyncio.timeout(TURN_S):
            await server.is_ready.wait()
        port = server.servers[0].sockets[0].getsockname()[1]
        client = await asyncio.create_subprocess_exec(
            sys.executable,
            "chat_client.py",
            f"http://127.0.0.1:{port}/api/chat",
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            out, _ = await asyncio.wait_for(client.communicate(), TURN_S)
        finally:
            server.should_exit = True
            await serving
    lines = out.decode().splitlines()
    lost = lines.index("the line is lost")
    shown = lines[:lost] + lines[lost + 1 : -1]
    assert (client.returncode, lines[-1]) == (0, "answer: Hello.")
    assert shown[0] == "start" and shown[-1] == "finish"
    assert shown.count("start") == shown.count("finish") == shown.count("text-start") == 1
    assert 0 < lost < len(shown)
