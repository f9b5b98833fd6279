"""Useless answers of a model wherever in a tree they come, and what callbacks make of them."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.run_config import RunConfig
from google.adk.agents.sequential_agent import SequentialAgent
from google.adk.models.llm_response import LlmResponse
from google.adk.workflow import BaseNode, Workflow
from google.genai import types

from dex_agents._effects import ToolEffect
from dex_agents._errors import AgentTurnError
from dex_agents_google_adk import AdkAgentRunner
from support.adk_oracle import Build, Driver, ScriptedLlm, World, answer, call, run_plain, text

READ: Any = {"default_tool_effect": ToolEffect.READ}
MALFORMED = LlmResponse(
    error_code="MALFORMED_FUNCTION_CALL",
    error_message="print(look(",
    finish_reason=types.FinishReason.MALFORMED_FUNCTION_CALL,
)
BLANK = answer(text("  "))
EMPTY = answer()  # content without parts, as LiteLLM makes of an answer that says nothing
THOUGHT_ONLY = answer(types.Part(text="hm", thought=True))


def agent_of(world: World, name: str = "root") -> LlmAgent:
    def look(x: str) -> str:
        """Look."""
        world.ran("look", x=x)
        return f"saw {x}"

    def note(callback_context: CallbackContext) -> None:
        world.log(f"agent {name}")

    return LlmAgent(
        name=name,
        model=ScriptedLlm(world=world),
        tools=[look],
        before_agent_callback=note,
        after_agent_callback=note,
    )


def sequence(world: World) -> BaseNode:
    return SequentialAgent(name="seq", sub_agents=[agent_of(world), agent_of(world, "second")])


def workflow(world: World) -> BaseNode:
    return Workflow(name="flow", edges=[("START", agent_of(world), agent_of(world, "second"))])


def without_feedback(requests: list[Any]) -> list[Any]:
    """What the model was asked, each question once."""
    return [
        request
        for request in requests
        if "could not be used" not in str(request["contents"][-1]["parts"])
    ]


@pytest.mark.parametrize("build", [agent_of, sequence, workflow])
@pytest.mark.parametrize("useless", [MALFORMED, BLANK, EMPTY, THOUGHT_ONLY])
async def test_the_turn_goes_on_as_if_it_had_not_been(build: Build, useless: LlmResponse) -> None:
    good = [call("look", "a", x="A"), text("one")]
    if build is not agent_of:
        good += [call("look", "b", x="B"), text("two")]
    plain = await run_plain(build, good, ["go"])
    script = [step for answer_ in good for step in ([useless], answer_)]
    world = World(script)
    driver = Driver(AdkAgentRunner(build(world), **READ), world, repeats=2)
    await driver.turn("go")
    assert without_feedback(world.requests) == plain.world.requests
    assert len(world.requests) == 2 * len(plain.world.requests)
    assert world.executed == plain.world.executed
    assert world.callbacks == plain.world.callbacks
    assert [m.text for m in driver.history] == [
        "".join(part.get("text", "") for part in event["content"]["parts"])
        for event in plain.events
    ]


async def test_callbacks_may_answer_in_its_place() -> None:
    world = World([[MALFORMED]])
    agent = agent_of(world)

    def repair(callback_context: CallbackContext, llm_response: LlmResponse) -> LlmResponse:
        world.log(f"repairs {llm_response.error_code}")
        return answer(text("repaired"))

    agent.after_model_callback = repair
    driver = Driver(AdkAgentRunner(agent, **READ), world)
    await driver.turn("go")
    assert driver.history[-1].text == "repaired"
    assert world.callbacks.count("repairs MALFORMED_FUNCTION_CALL") == 1


async def test_useless_answers_count_as_model_calls() -> None:
    world = World([[MALFORMED]] * 3)
    config = RunConfig(max_llm_calls=2)
    driver = Driver(AdkAgentRunner(agent_of(world), run_config=config, **READ), world)
    with pytest.raises(AgentTurnError, match="too many model calls"):
        await driver.turn("go")
    assert driver.usage.model_calls == 2
