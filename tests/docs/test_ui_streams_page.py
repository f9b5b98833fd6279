"""The chat endpoint of the guide, called as ``useChat`` calls it and read by the real AI SDK."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx
from starlette.applications import Starlette

from core.conftest import TURN_S, Stages, stages
from core.scripted_runner import Answer, Call
from dex_agents import AgentSessionClient, DeferredToolExecution
from support.ai_sdk import read_streams
from support.requirements import REPOSITORY

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

            def said(message_id: str, text: str) -> Any:
                return {
                    "id": message_id,
                    "role": "user",
                    "parts": [{"type": "text", "text": text}],
                }

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
