"""ADK's own tools and toolsets, planners and code execution next to plain ADK."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.sequential_agent import SequentialAgent
from google.adk.apps.app import App
from google.adk.code_executors.built_in_code_executor import BuiltInCodeExecutor
from google.adk.events.event import Event
from google.adk.memory.in_memory_memory_service import InMemoryMemoryService
from google.adk.planners.built_in_planner import BuiltInPlanner
from google.adk.planners.plan_re_act_planner import PlanReActPlanner
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.sessions.session import Session
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.load_memory_tool import load_memory_tool
from google.adk.tools.openapi_tool.openapi_spec_parser.openapi_toolset import OpenAPIToolset
from google.adk.tools.preload_memory_tool import preload_memory_tool
from google.genai import types

from dex_agents import ToolEffect, ToolPolicy
from dex_agents._errors import AgentTurnError
from dex_agents_google_adk import AdkAgentRunner
from support.adk_oracle import Driver, ScriptedLlm, Step, World, call, compare, text, thought

READ: Any = {"default_tool_effect": ToolEffect.READ}


def agent_with(world: World, *tools: Any, **fields: Any) -> LlmAgent:
    settings: dict[str, Any] = {
        "name": "root",
        "model": ScriptedLlm(world=world),
        "tools": list(tools),
    }
    return LlmAgent(**settings | fields)


def answers(world: World, request: int) -> list[Any]:
    parts = world.requests[request]["contents"][-1]["parts"]
    return [part["function_response"]["response"] for part in parts]


class Shop(http.server.BaseHTTPRequestHandler):
    """Two operations, and a third that fails."""

    hits: list[tuple[str, str, Any]]

    def do_GET(self) -> None:
        self.hits.append(("GET", self.path, None))
        if self.path.startswith("/items/broken"):
            self._answer(503, {"detail": "down"})
        else:
            self._answer(200, {"id": self.path.rsplit("/", 1)[1], "price": 3})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.hits.append(("POST", self.path, body))
        self._answer(200, {"order": body["item"], "key": self.headers.get("X-Shop-Key")})

    def _answer(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""


@contextmanager
def shop() -> Iterator[tuple[str, list[tuple[str, str, Any]]]]:
    hits: list[tuple[str, str, Any]] = []
    handler = type("Handler", (Shop,), {"hits": hits})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", hits
    finally:
        server.shutdown()
        server.server_close()


def spec(url: str) -> dict[str, Any]:
    answer = {"200": {"description": "ok", "content": {"application/json": {"schema": {}}}}}
    item = {"name": "item_id", "in": "path", "required": True, "schema": {"type": "string"}}
    order = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}
    return {
        "openapi": "3.0.0",
        "info": {"title": "shop", "version": "1"},
        "servers": [{"url": url}],
        "paths": {
            "/items/{item_id}": {
                "get": {
                    "operationId": "get_item",
                    "summary": "Get an item.",
                    "parameters": [item],
                    "responses": answer,
                }
            },
            "/orders": {
                "post": {
                    "operationId": "place_order",
                    "summary": "Order an item.",
                    "requestBody": {"content": {"application/json": {"schema": order}}},
                    "responses": answer,
                }
            },
        },
    }


async def test_openapi_toolset() -> None:
    with shop() as (url, hits):

        def build(world: World) -> LlmAgent:
            return agent_with(
                world, OpenAPIToolset(spec_dict=spec(url), allow_private_network_access=True)
            )

        script: list[Step] = [
            [call("get_item", item_id="7"), call("place_order", item="7")],
            call("get_item", item_id="broken"),
            text("done"),
        ]
        driver = await compare(
            build,
            script,
            tool_policies={
                "get_item": ToolPolicy(ToolEffect.READ),
                "place_order": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE),
            },
        )
        expected = [("GET", "/items/7", None), ("POST", "/orders", {"item": "7"})]
        expected.append(("GET", "/items/broken", None))
        # Once by plain ADK, once in a tool Step, whatever RunModel is repeated.
        assert sorted(hits, key=repr) == sorted(expected * 2, key=repr)
        assert [item.requires_approval for item in driver.requested] == [False, True, False]


async def test_toolsets_of_two_agents_may_list_one_name() -> None:
    def build(world: World) -> SequentialAgent:
        class Tools(BaseToolset):
            def __init__(self, where: str) -> None:
                super().__init__()
                self.where = where

            async def get_tools(self, readonly_context: Any = None) -> list[BaseTool]:
                def lookup(x: str) -> str:
                    """Look up."""
                    world.ran("lookup", x=x, where=self.where)
                    return f"{x} in {self.where}"

                return [FunctionTool(lookup)]

        first = agent_with(world, Tools("attic"), name="first")
        second = agent_with(world, Tools("cellar"), name="second")
        return SequentialAgent(name="root", sub_agents=[first, second])

    script: list[Step] = [call("lookup", x="1"), text("a"), call("lookup", x="2"), text("b")]
    driver = await compare(build, script, **READ)
    assert driver.world.executed == [
        ("lookup", {"x": "1", "where": "attic"}),
        ("lookup", {"x": "2", "where": "cellar"}),
    ]


async def memory() -> InMemoryMemoryService:
    service = InMemoryMemoryService()
    said = types.Content(role="user", parts=[types.Part(text="the harbour opens at nine")])
    event = Event(author="user", invocation_id="i", content=said, timestamp=1_700_000_000.0)
    session = Session(id="old", app_name="root", user_id="user", events=[event])
    await service.add_session_to_memory(session)
    return service


async def test_memory_tools() -> None:
    def build(world: World) -> LlmAgent:
        return agent_with(world, load_memory_tool, preload_memory_tool)

    driver = await compare(
        build,
        [call("load_memory", query="harbour"), text("at nine"), text("bye")],
        ["when opens the harbour", "and now?"],
        memory_service=await memory(),
    )
    (requested,) = driver.requested
    assert (requested.effect, requested.requires_approval) == (ToolEffect.READ, False)
    assert "PAST_CONVERSATIONS" in str(driver.world.requests[0])
    assert "the harbour opens at nine" in str(driver.world.requests[1])


@pytest.mark.parametrize("name", ["plan and act", "built in"])
async def test_planners(name: str) -> None:
    def build(world: World) -> LlmAgent:
        def look(x: int) -> int:
            """Look."""
            world.ran("look", x=x)
            return x

        planner: Any = PlanReActPlanner()
        if name == "built in":
            planner = BuiltInPlanner(thinking_config=types.ThinkingConfig(include_thoughts=True))
        return agent_with(world, look, planner=planner)

    script: list[Step] = [
        [thought("hm"), text("/*PLANNING*/ look once /*ACTION*/"), call("look", x=1)],
        [thought("so"), text("/*REASONING*/ seen /*FINAL_ANSWER*/ one")],
        text("/*FINAL_ANSWER*/ bye"),
    ]
    await compare(build, script, ["go", "next"], **READ)


async def test_built_in_code_execution() -> None:
    def build(world: World) -> LlmAgent:
        model = ScriptedLlm(world=world, model="gemini-2.5-flash")
        return agent_with(world, model=model, code_executor=BuiltInCodeExecutor())

    code = types.ExecutableCode(code="print(1)", language=types.Language.PYTHON)
    result = types.CodeExecutionResult(outcome=types.Outcome.OUTCOME_OK, output="1")
    script: list[Step] = [
        [
            text("let me see"),
            types.Part(executable_code=code),
            types.Part(code_execution_result=result),
            text("it is one"),
        ],
        text("bye"),
    ]
    driver = await compare(build, script, ["go", "next"])
    assert driver.world.requests[0]["config"]["tools"] == [{"code_execution": {}}]


class Noting(BasePlugin):
    """Notes models and tools of every agent, the inner ones too."""

    def __init__(self, world: World) -> None:
        super().__init__("noting")
        self.world = world

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
        self.world.log(f"model {callback_context.agent_name}")

    async def before_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: Any) -> None:
        self.world.log(f"tool {tool.name}")


def nested(world: World, *tools: Any, levels: int = 1) -> AgentTool:
    """An agent tool over the tools, behind as many agents."""
    found: Any = list(tools)
    for level in range(levels, 0, -1):
        name = f"inner{level}"
        found = [
            AgentTool(
                LlmAgent(name=name, description=name, model=ScriptedLlm(world=world), tools=found)
            )
        ]
    inner: AgentTool = found[0]
    return inner


def pay_tool(world: World, **fields: Any) -> FunctionTool:
    def pay(amount: int) -> str:
        """Pay."""
        world.ran("pay", amount=amount)
        return f"paid {amount}"

    return FunctionTool(pay, **fields)


async def test_an_agent_tool_is_one_step_with_the_apps_plugins() -> None:
    def build(world: World) -> App:
        root = agent_with(world, nested(world, pay_tool(world)))
        return App(name="root", root_agent=root, plugins=[Noting(world)])

    script: list[Step] = [
        call("inner1", request="pay 3"),
        call("pay", amount=3),
        text("paid"),
        text("done"),
    ]
    # The inner agent writes; with a write effect that is fine.
    policies = {"inner1": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=False)}
    driver = await compare(build, script, tool_policies=policies)
    assert [item.tool_name for item in driver.requested] == ["inner1"]
    assert driver.world.executed == [("pay", {"amount": 3})]
    assert driver.world.callbacks == [
        "model root",
        "tool inner1",
        "model inner1",
        "tool pay",
        "model inner1",
        "model root",
    ]


@pytest.mark.parametrize("levels", [1, 2])
async def test_a_reading_agent_tool_must_not_write_at_any_depth(levels: int) -> None:
    world = World([call("inner1", request="x")])
    policies = {f"inner{n}": ToolPolicy(ToolEffect.READ) for n in range(1, levels + 1)}
    root = agent_with(world, nested(world, pay_tool(world), levels=levels))
    driver = Driver(AdkAgentRunner(root, tool_policies=_known(policies)), world)
    with pytest.raises(AgentTurnError, match=r"'inner1' has the effect read.*'(pay|inner2)'"):
        await driver.turn("go")
    assert world.executed == []


def _known(policies: dict[str, ToolPolicy]) -> dict[str, ToolPolicy]:
    # Inner agents are no tools of the tree, so only the outer one can have a policy.
    return {"inner1": policies["inner1"]}


async def test_an_approval_inside_an_agent_tool_is_an_explicit_failure() -> None:
    world = World([call("inner1", request="pay"), call("pay", amount=3), text("sorry")])
    root = agent_with(world, nested(world, pay_tool(world, require_confirmation=True)))
    policies = {"inner1": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=False)}
    driver = Driver(AdkAgentRunner(root, tool_policies=policies), world)
    await driver.turn("go")
    assert world.executed == []
    (answer,) = answers(world, 2)
    assert answer["error"].startswith(
        "The tool call failed: The agent 'inner1' stopped to wait for an approval or an answer"
    )
    assert "mode='single_turn'" in answer["error"]


async def test_a_generator_that_a_toolset_lists() -> None:
    def build(world: World) -> LlmAgent:
        class Tools(BaseToolset):
            async def get_tools(self, readonly_context: Any = None) -> list[BaseTool]:
                def count() -> Any:
                    """Count."""
                    world.ran("count")
                    yield 1

                return [FunctionTool(count)]

        return agent_with(world, Tools())

    await compare(build, [call("count", "c1"), text("done")], **READ)
