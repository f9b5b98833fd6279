"""A ``SystemExit`` inside ADK's own tasks ends the turn and no process."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.parallel_agent import ParallelAgent
from google.adk.models.llm_request import LlmRequest

from dex_agents import AgentTurnError
from dex_agents_google_adk import AdkAgentRunner
from support.adk_oracle import Driver, ScriptedLlm, World, text


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
