"""A task beside other calls of one response: as plain ADK has it, or the turn fails visibly."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.runners import InMemoryRunner
from google.genai import types

from dex_agents import AgentTurnError
from dex_agents_google_adk import AdkAgentRunner
from support.adk_oracle import Driver, ScriptedLlm, World, call, text

TASK = call("painter", "t1", request="paint")
TOOL = call("note", "n1", x="a")
TRANSFER = call("transfer_to_agent", "m1", agent_name="other")
DONE = [call("finish_task", "f1", result="blue")]
MESSAGES = ("go", "again")


def build(first: Sequence[types.Part], *answers: Any) -> tuple[World, LlmAgent]:
    """A root with a tool, a task agent and an agent to transfer to; all read one script."""
    world = World([list(first), *answers, *[[text(f"answer {n}")] for n in range(3)]])

    def note(x: str) -> str:
        """Write it down."""
        world.log(f"ran {x}")
        return f"noted {x}"

    def agent(name: str, **fields: Any) -> LlmAgent:
        return LlmAgent(name=name, model=ScriptedLlm(world=world), description=name, **fields)

    subs = [agent("painter", mode="task"), agent("other")]
    return world, agent("root", tools=[note], sub_agents=subs)


def requests_of(world: World) -> list[str]:
    return [re.sub(r"adk-[0-9a-f-]+", "<call>", json.dumps(shown)) for shown in world.requests]


def orders(*calls: types.Part) -> list[tuple[types.Part, ...]]:
    return list(itertools.permutations(calls))


def ids(calls: Sequence[types.Part]) -> str:
    return "-".join(str(part.function_call.name) for part in calls if part.function_call)


@pytest.mark.parametrize("calls", orders(TASK, TOOL) + orders(TASK, TOOL, TRANSFER), ids=ids)
async def test_a_task_that_ends_is_as_in_plain_adk(calls: Sequence[types.Part]) -> None:
    plain, agent = build(calls, DONE)
    runner = InMemoryRunner(agent=agent, app_name="root")
    for message in MESSAGES:
        await runner.run_debug(message, quiet=True)
    world, agent = build(calls, DONE)
    driver = Driver(AdkAgentRunner(agent), world)
    for message in MESSAGES:
        await driver.turn(message)
    assert requests_of(world) == requests_of(plain)
    assert world.callbacks == plain.callbacks == ["ran a"]


@pytest.mark.parametrize("calls", orders(TASK, TOOL) + orders(TASK, TRANSFER), ids=ids)
async def test_a_task_that_asks_the_user_beside_another_call_fails_the_turn(
    calls: Sequence[types.Part],
) -> None:
    world, agent = build(calls, [text("Which colour?")])
    with pytest.raises(AgentTurnError, match=r"^the run ended without the results of "):
        await Driver(AdkAgentRunner(agent), world).turn("go")
    assert world.callbacks == []
