"""A model that answers one request with several complete responses, as plain ADK takes it."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.sequential_agent import SequentialAgent
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import BaseNode, Workflow
from google.genai import types

from dex_agents._effects import ToolEffect
from dex_agents_google_adk import AdkAgentRunner
from support.adk_oracle import (
    Build,
    Driver,
    ScriptedLlm,
    World,
    answer,
    call,
    compare,
    run_plain,
    text,
)

READ: Any = {"default_tool_effect": ToolEffect.READ}
NO_USAGE: dict[str, Any] = {"usage_metadata": None}


def agent_of(world: World, name: str = "root", *, counts: bool = False) -> LlmAgent:
    def look(x: str, tool_context: ToolContext) -> str:
        """Look."""
        world.ran("look", x=x)
        tool_context.state["seen"] = x
        return f"saw {x}"

    def after_model(callback_context: CallbackContext, llm_response: LlmResponse) -> None:
        if llm_response.partial:
            return
        world.log(f"after_model {name}")
        if counts:
            callback_context.state["parts"] = callback_context.state.get("parts", 0) + 1

    return LlmAgent(
        name=name,
        model=ScriptedLlm(world=world),
        instruction="Seen: {seen?}, parts: {parts?}.",
        tools=[look],
        after_model_callback=after_model,
        output_key="out" if counts else None,
    )


A = call("look", "a", x="A")
B = call("look", "b", x="B")
C = call("look", "a", x="C")  # an id that comes again
SIGNED = types.Part(
    function_call=types.FunctionCall(name="look", args={"x": "B"}, id="b"),
    thought_signature=bytes(range(256)),
)

SCRIPTS: dict[str, list[Any]] = {
    "calls, then text": [[answer(A, **NO_USAGE), answer(text("so far"))]],
    "text, then calls": [[answer(text("wait"), **NO_USAGE), answer(A)], text("done")],
    "calls twice": [[answer(A, **NO_USAGE), answer(B)], text("done")],
    "calls with signatures": [[answer(A, **NO_USAGE), answer(SIGNED)], text("done")],
    "calls three times": [[answer(A), answer(B), answer(C)], text("done")],
    "text between calls": [
        [answer(A), answer(text("and")), answer(B), answer(text("also"))],
    ],
    "an unknown tool first": [[answer(call("nope", "n")), answer(A)], text("done")],
    "an unknown tool last": [[answer(A), answer(call("nope", "n"))], text("done")],
    "streamed": [
        [
            answer(text("wa"), partial=True),
            answer(text("it"), partial=True),
            answer(text("wait"), A),
            answer(text("mo"), partial=True),
            answer(text("more"), B),
        ],
        text("done"),
    ],
}


@pytest.mark.parametrize("name", SCRIPTS)
async def test_an_answer_in_parts(name: str) -> None:
    driver = await compare(agent_of, SCRIPTS[name], repeats=2, **READ)
    assert driver.usage.model_calls == len(SCRIPTS[name])


@pytest.mark.parametrize("name", SCRIPTS)
async def test_state_of_an_answer_in_parts(name: str) -> None:
    # Plain ADK lets the events of one answer share their state changes in memory, so those are not
    # compared one by one.
    def counting(world: World) -> LlmAgent:
        return agent_of(world, counts=True)

    plain = await run_plain(counting, SCRIPTS[name], ["go"])
    world = World(SCRIPTS[name])
    driver = Driver(AdkAgentRunner(counting(world), **READ), world, repeats=2)
    await driver.turn("go")
    assert world.requests == plain.world.requests
    assert driver.state == plain.state


def sequence(world: World) -> BaseNode:
    return SequentialAgent(name="seq", sub_agents=[agent_of(world), agent_of(world, "second")])


def workflow(world: World) -> BaseNode:
    return Workflow(name="flow", edges=[("START", agent_of(world), agent_of(world, "second"))])


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (sequence, "calls three times"),
        (sequence, "text between calls"),  # a node of a Workflow may say one text only
        (workflow, "calls three times"),
        (workflow, "an unknown tool last"),
    ],
)
async def test_an_answer_in_parts_within_a_tree(build: Build, name: str) -> None:
    await compare(build, [*SCRIPTS[name], *SCRIPTS[name]], repeats=2, **READ)


async def test_live_text_comes_when_the_model_says_it() -> None:
    for name, texts in {
        "streamed": ["wa", "it", "mo", "done"],
        "text between calls": ["and", "also"],
    }.items():
        driver = await compare(agent_of, SCRIPTS[name], **READ)
        assert [event["text"] for event in driver.live.of("text_delta")] == texts
