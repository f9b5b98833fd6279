"""A ``SystemExit`` inside ADK's own tasks ends the turn and no process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.parallel_agent import ParallelAgent
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.agent_tool import AgentTool

from dex_agents import AgentTurnError
from dex_agents_google_adk import AdkAgentRunner
from support.adk_oracle import Driver, ScriptedLlm, World, call, text
from support.waiting import TURN_S, session


def leave(request: LlmRequest) -> Any:
    raise SystemExit(3)


@pytest.mark.parametrize("is_parallel", [False, True], ids=["one agent", "in a branch"])
async def test_a_model_that_exits_fails_its_turn(is_parallel: bool) -> None:
    world = World([leave, text("fine"), text("fine")])
    agent = LlmAgent(name="root", model=ScriptedLlm(world=world))
    tree = ParallelAgent(name="both", sub_agents=[agent]) if is_parallel else agent
    driver = Driver(AdkAgentRunner(tree), world)
    with pytest.raises(AgentTurnError, match="SystemExit: 3"):
        await driver.turn("go")
    assert (await driver.turn("again")).final_text == "fine"


async def test_a_callback_that_exits_fails_its_turn() -> None:
    def callback(callback_context: Any, llm_request: LlmRequest) -> None:
        raise SystemExit("enough")

    world = World([text("never")])
    agent = LlmAgent(name="root", model=ScriptedLlm(world=world), before_model_callback=callback)
    with pytest.raises(AgentTurnError, match="SystemExit: enough"):
        await Driver(AdkAgentRunner(agent), world).turn("go")


async def exits_in_a_task() -> str:
    """Exit in a task of its own."""

    async def leaves() -> None:
        raise SystemExit(3)

    await asyncio.gather(leaves())
    return "never"


@pytest.mark.parametrize("what", ["a task of a tool", "the model behind an AgentTool"])
async def test_a_tool_that_exits_fails_its_call(what: str, tmp_path: Path) -> None:
    inner = LlmAgent(name="exits_in_a_task", model=ScriptedLlm(world=World([leave] * 3)))
    tool: Any = exits_in_a_task if what == "a task of a tool" else AgentTool(inner)
    arguments = {} if tool is exits_in_a_task else {"request": "go"}
    world = World([call("exits_in_a_task", **arguments), text("fine")])
    root = LlmAgent(name="root", model=ScriptedLlm(world=world), tools=[tool])
    async with session(root, tmp_path) as sessions:
        snapshot = await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
    assert snapshot.last_turn is not None and snapshot.last_turn.final_text == "fine"
    response = world.requests[1]["contents"][-1]["parts"][0]["function_response"]["response"]
    assert "SystemExit: 3" in response["error"]
