"""A message into the open turn: the next model call reads it, and the history keeps its place."""

from __future__ import annotations

import asyncio
from pathlib import Path

from google.adk.agents.llm_agent import LlmAgent

from dex_agents import ToolEffect
from dex_agents.testing import private_engine
from dex_agents_google_adk import adk_agent_session_flow
from support.adk_oracle import ScriptedLlm, World, call, text
from support.serving import serve

TURN_S = 40.0


async def test_a_message_reaches_the_open_turn(tmp_path: Path) -> None:
    world = World([[call("slow")], text("changed plan"), text("later")])
    started, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        """Slow."""
        started.set()
        await go_on.wait()
        return "slow result"

    root = LlmAgent(name="root", model=ScriptedLlm(world=world), tools=[slow])
    flow = adk_agent_session_flow(root, flow_type="Steered", default_tool_effect=ToolEffect.READ)
    async with (
        private_engine(tmp_path / "e.db") as engine,
        serve(engine.address, flow, tmp_path) as sessions,
    ):
        await sessions.start_session("s", "begin")
        await asyncio.wait_for(started.wait(), TURN_S)
        await sessions.steer_user_message("s", "rather do this")
        go_on.set()
        await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
        await sessions.send_user_message("s", "next")
        await sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
        page = await sessions.list_messages("s")
    contents = world.requests[1]["contents"]
    assert contents[-2]["parts"][0]["function_response"]["response"] == {"result": "slow result"}
    assert contents[-1] == {"role": "user", "parts": [{"text": "rather do this"}]}
    assert [(m.role.value, m.text) for m in page.messages if m.text] == [
        ("user", "begin"),
        ("user", "rather do this"),
        ("assistant", "changed plan"),
        ("user", "next"),
        ("assistant", "later"),
    ]
    # What later turns read is what the model has read.
    assert world.requests[2]["contents"][: len(contents)] == contents
    assert len(world.requests) == 3
