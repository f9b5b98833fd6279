"""ADK's input tool and long-running tools beside everything else that a response may call."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.sequential_agent import SequentialAgent
from google.adk.apps.app import App, ResumabilityConfig
from google.adk.events.request_input import RequestInput
from google.adk.runners import InMemoryRunner
from google.adk.tools._request_input_tool import request_input
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import START, BaseNode, Workflow
from google.genai import types
from pydantic import BaseModel

from dex_agents import InterruptError, InvalidInputError
from dex_agents._contract import Json, RequestedToolCall, ToolCallRecord, ToolCallStatus
from dex_agents._effects import ToolEffect
from dex_agents_google_adk import AdkAgentRunner
from support.adk_oracle import Driver, ScriptedLlm, World, call, text
from support.waiting import pending, session

READ: Any = {"default_tool_effect": ToolEffect.READ}
TURN_S = 40.0
QUESTION = {"message": "Whose?", "response_schema": {"type": "string"}}
INPUT = "adk_request_input"


def agent_of(world: World, name: str = "root", *, asks: bool = False) -> LlmAgent:
    def weather(city: str, tool_context: ToolContext) -> Any:
        """The weather."""
        world.ran("weather", city=city)
        tool_context.state["city"] = city
        return {"city": city}

    def render(x: int) -> Any:
        """Render."""
        world.ran("render", x=x)
        return {"job": x} if x else None

    return LlmAgent(
        name=name,
        model=ScriptedLlm(world=world),
        instruction="Be brief. {city?}",
        tools=[
            request_input,
            FunctionTool(weather, require_confirmation=asks),
            LongRunningFunctionTool(render),
        ],
    )


def answer_to(name: str, call_id: str) -> dict[str, Any]:
    return {"result": f"{name} {call_id}"}


async def plain_requests(root: BaseNode, world: World) -> list[Json]:
    """Requests of plain, resumable ADK; everything that waits is answered in one message."""
    app = App(
        name="root", root_agent=root, resumability_config=ResumabilityConfig(is_resumable=True)
    )
    runner = InMemoryRunner(app=app)
    plain = await runner.session_service.create_session(app_name="root", user_id="u")
    where: Any = {"user_id": "u", "session_id": plain.id}
    parts = [types.Part(text="go")]
    while parts:
        content = types.Content(role="user", parts=parts)
        parts = []
        async for event in runner.run_async(new_message=content, **where):
            for item in event.get_function_calls():
                if item.id in (event.long_running_tool_ids or ()):
                    response = answer_to(item.name or "", item.id or "")
                    given = types.FunctionResponse(id=item.id, name=item.name, response=response)
                    parts.append(types.Part(function_response=given))
    return world.requests


def answered(item: RequestedToolCall) -> ToolCallRecord | None:
    """What the outside answers; None for what runs in its Step."""
    if item.tool_name not in (INPUT, "render"):
        return None
    value = answer_to(item.tool_name, item.call_id)
    return ToolCallRecord(item.call_id, item.tool_name, ToolCallStatus.SUCCEEDED, output=value)


def in_any_order(requests: Sequence[Json]) -> list[Json]:
    """Without what a session does otherwise with answers that come late.

    Plain ADK puts them last, a session in the order of the calls. And to other agents plain ADK
    quotes them as the user's, a session as those of the agent that asked.
    """
    shown = re.sub(r"\[user\] (`\w+` tool returned)", r"[root] \1", json.dumps(list(requests)))
    found = json.loads(shown)
    for request in found:
        for content in request["contents"]:
            parts = content["parts"]
            if all("function_response" in part for part in parts):
                parts.sort(key=json.dumps)
        # Quotations of one response may stand in several contents.
        quoted = [part for content in request["contents"] for part in content["parts"]]
        if any("tool returned" in part.get("text", "") for part in quoted):
            context = next(part for part in quoted if part["text"].startswith("For context"))
            rest = sorted((part for part in quoted if part != context), key=json.dumps)
            request["contents"] = [context, *rest]
    return list(found)


ROOTS: dict[str, Callable[[World], BaseNode]] = {
    "agent": agent_of,
    "sequence": lambda world: SequentialAgent(
        name="both", sub_agents=[agent_of(world), agent_of(world, "second")]
    ),
    "workflow": lambda world: Workflow(
        name="flow", edges=[("START", agent_of(world), agent_of(world, "second"))]
    ),
}
CALLS = {
    "question": call(INPUT, "i", **QUESTION),
    "weather": call("weather", "w", city="X"),
    "job": call("render", "j", x=0),
}
MIXES = [mix for n in (1, 2, 3) for mix in itertools.permutations(CALLS, n) if "question" in mix]


@pytest.mark.parametrize("root", ROOTS)
async def test_a_question_beside_other_calls(root: str) -> None:
    for mix in MIXES:
        responses = [[CALLS[name] for name in mix], [CALLS["question"]], text("done")]
        # What a node of a Workflow hands on is another test's; one agent asks, the second answers.
        script = [*responses, text("second")]
        plain_world = World(script)
        plain = await plain_requests(ROOTS[root](plain_world), plain_world)
        world = World(script)
        driver = Driver(
            AdkAgentRunner(ROOTS[root](world), **READ), world, execute=answered, repeats=2
        )
        await driver.turn("go")
        assert len(plain) == (3 if root == "agent" else 4), mix
        assert in_any_order(world.requests) == in_any_order(plain), mix
        assert [m.framework_item["author"] for m in driver.history].count("user") == 1
        asked = [item for item in driver.requested if item.interrupt is not None]
        assert [item.tool_name for item in asked] == [INPUT, INPUT]
        assert asked[0].interrupt is not None
        assert asked[0].interrupt.response_schema == {"type": "string"}
        stored = [
            message.framework_item["long_running_tool_ids"]
            for message in driver.history
            if "long_running_tool_ids" in message.framework_item
        ]
        assert stored[0] == sorted({"question": "i", "job": "j"}[n] for n in mix if n != "weather")


async def test_a_waiting_transfer_target_runs_to_its_end() -> None:
    script = [call("transfer_to_agent", agent_name="child"), CALLS["question"], text("all yours")]

    def build(world: World) -> LlmAgent:
        root = LlmAgent(name="root", model=ScriptedLlm(world=world))
        root.sub_agents = [child := agent_of(world, "child")]
        child.parent_agent = root
        return root

    plain_world = World(script)
    plain = await plain_requests(build(plain_world), plain_world)
    world = World(script)
    driver = Driver(AdkAgentRunner(build(world), **READ), world, execute=answered, repeats=2)
    outcome = await driver.turn("go")
    assert in_any_order(world.requests) == in_any_order(plain)
    assert outcome.final_text == "all yours"
    assert (driver.history[-1].framework_item["author"], driver.history[-1].text) == (
        "child",
        "all yours",
    )


async def test_a_question_without_its_text_is_the_models_mistake() -> None:
    world = World([[call(INPUT, "i"), call("weather", "w", city="X")], text("sorry")])
    driver = Driver(AdkAgentRunner(agent_of(world), **READ), world)
    await driver.turn("go")
    parts = world.requests[-1]["contents"][-1]["parts"]
    assert "mandatory input parameters" in parts[0]["function_response"]["response"]["error"]
    assert parts[1]["function_response"]["response"] == {"city": "X"}
    assert [item.tool_name for item in driver.requested] == ["weather"]


async def test_callbacks_may_answer_a_question() -> None:
    world = World([[call(INPUT, "i", **QUESTION)], text("done")])

    def guard(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext) -> Any:
        return {"result": "nobody's"}

    agent = agent_of(world)
    agent.before_tool_callback = guard
    driver = Driver(AdkAgentRunner(agent, **READ), world)
    await driver.turn("go")
    assert not driver.requested
    parts = world.requests[-1]["contents"][-1]["parts"]
    assert parts[0]["function_response"]["response"] == {"result": "nobody's"}


async def test_all_kinds_of_waits_at_once(tmp_path: Path) -> None:
    """Answers come in any order or together; what is none changes nothing."""
    boolean = {"message": "Sure?", "response_schema": {"type": "boolean"}}
    response = [
        call("render", "j0", x=0),
        call(INPUT, "i0", **QUESTION),
        call("weather", "w", city="X"),
        call(INPUT, "i1", **boolean),
        call("render", "j1", x=1),
    ]
    world = World([response, text("done"), text("you are welcome")])
    root = agent_of(world, asks=True)
    async with session(root, tmp_path) as sessions:
        waiting = await pending(sessions, 5)
        assert len({item.interrupt_id for item in waiting}) == 5
        of = {item.tool_call_id: item for item in waiting}
        assert [of[name].kind for name in ("j0", "i0", "w", "i1", "j1")] == [
            "long_running",
            "input",
            "approval",
            "input",
            "long_running",
        ]
        with pytest.raises(InterruptError, match=r"another form: True is not of type 'string'"):
            await sessions.answer_question("s", of["i0"].interrupt_id, True)
        with pytest.raises(InterruptError, match=r"of another form: .*is not of type 'boolean'"):
            await sessions.answer_question("s", of["i1"].interrupt_id, {"result": False})
        for interrupt in waiting:
            with pytest.raises(InvalidInputError, match="None, which is no answer"):
                await sessions.answer_question("s", interrupt.interrupt_id, None)
        with pytest.raises(InterruptError, match="asks for an approval"):
            await sessions.answer_question("s", of["w"].interrupt_id, {"confirmed": True})
        with pytest.raises(InterruptError, match="kind input; use answer_question"):
            await sessions.resolve_interrupt("s", of["i1"].interrupt_id, approved=True)
        # A message of the user is no answer: it waits for its own turn.
        await sessions.send_user_message("s", "thanks")
        assert await pending(sessions, 5) == waiting
        await asyncio.gather(
            sessions.answer_question("s", of["j1"].interrupt_id, 0),
            sessions.answer_question("s", of["i1"].interrupt_id, False),
            sessions.resolve_interrupt("s", of["w"].interrupt_id, approved=True),
        )
        await sessions.answer_question("s", of["i0"].interrupt_id, "")
        assert len(world.requests) == 1
        await sessions.answer_question("s", of["j0"].interrupt_id, [])
        await sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
    parts = world.requests[1]["contents"][-1]["parts"]
    assert [part["function_response"]["id"] for part in parts] == ["j0", "i0", "w", "i1", "j1"]
    assert [part["function_response"]["response"] for part in parts] == [
        {"result": []},
        {"result": ""},
        {"city": "X"},
        {"result": False},
        {"result": 0},
    ]
    assert world.requests[2]["contents"][-1]["parts"] == [{"text": "thanks"}]
    assert sorted(name for name, _ in world.executed) == ["render", "render", "weather"]


class _Colour(BaseModel):
    name: str


@pytest.mark.parametrize("asker", ["agent", "node"])
async def test_an_answer_with_more_than_its_schema_names(asker: str, tmp_path: Path) -> None:
    given = {"name": "blue", "shade": 3, "none": None}
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    seen: list[Any] = []

    def build(world: World) -> BaseNode:
        async def ask() -> AsyncGenerator[RequestInput, None]:
            yield RequestInput(interrupt_id="q", message="Which?", response_schema=_Colour)

        def use(node_input: Any) -> str:
            seen.append(node_input)
            return "used"

        if asker == "node":
            return Workflow(name="root", edges=[(START, ask, use)])
        return agent_of(world)

    script: list[Any] = [
        [call(INPUT, "q", message="Which?", response_schema=schema)],
        [text("done")],
    ]
    plain = World(script)
    runner = InMemoryRunner(app=App(name="root", root_agent=build(plain)))
    where: Any = {"user_id": "u", "session_id": "p"}
    await runner.session_service.create_session(app_name="root", **where)
    response = types.FunctionResponse(id="q", name=INPUT, response=given)
    for part in (types.Part(text="go"), types.Part(function_response=response)):
        message = types.Content(role="user", parts=[part])
        async for _ in runner.run_async(new_message=message, **where):
            pass
    world = World(script)
    async with session(build(world), tmp_path) as sessions:
        waiting = (await pending(sessions))[0]
        await sessions.answer_question("s", waiting.interrupt_id, given)
        await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
    assert world.requests == plain.requests
    if asker == "node":
        assert seen == [{"name": "blue"}] * 2  # ADK's own validation drops the others
    else:
        answer = world.requests[-1]["contents"][-1]["parts"][0]["function_response"]["response"]
        assert answer == given
