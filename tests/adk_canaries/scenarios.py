"""What holds of a session only because of a workaround, where no tree of ``support.tree_cases``
shows it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.parallel_agent import ParallelAgent
from google.adk.agents.sequential_agent import SequentialAgent
from google.adk.apps.app import App, ResumabilityConfig
from google.adk.events.event import Event
from google.adk.events.request_input import RequestInput
from google.adk.flows.llm_flows.context import _contents
from google.adk.flows.llm_flows.tools import _functions
from google.adk.telemetry import tracing
from google.adk.tools._request_input_tool import request_input
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.mcp_tool.mcp_session_manager import (
    StdioConnectionParams,
    StreamableHTTPConnectionParams,
)
from google.adk.tools.mcp_tool.mcp_toolset import McpToolset
from google.adk.workflow import JoinNode, Workflow, node
from google.adk.workflow.utils import _rehydration_utils
from google.adk.workflow.utils._replay_sequence_barrier import ReplaySequenceBarrier
from google.adk.workflow.utils._workflow_graph_utils import build_node
from mcp import StdioServerParameters

from dex_agents import OUTCOME_UNKNOWN_TOOL_RESULT
from dex_agents._contract import (
    RequestedToolCall,
    RunModelRequest,
    ToolCallRecord,
    ToolCallStatus,
)
from dex_agents._effects import ToolEffect, ToolPolicy
from dex_agents_google_adk import AdkAgentRunner
from dex_agents_google_adk._adk_workarounds import call_ids_of_session
from dex_agents_google_adk._late_copies import Original
from support.adk_oracle import Driver, LiveEvents, ScriptedLlm, World, call, stored, text
from support.checkpoint import Checkpoint
from support.lasting_mcp_server import lasting_server
from support.tree_cases import llm
from support.tree_oracle import TreeLlm, TreeWorld

MCP_SERVER = Path(__file__).parents[1] / "support" / "mcp_server.py"
A2A_AGENT = "google.adk.agents.remote_a2a_agent"
READ: Any = {"default_tool_effect": ToolEffect.READ}
WRITE = ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=False)
PATIENCE_S = 30


def look(x: str = "") -> dict[str, str]:
    """Look."""
    return {"seen": x}


def agent_of(world: World, *tools: Any, name: str = "root") -> LlmAgent:
    return LlmAgent(name=name, model=ScriptedLlm(world=world), tools=list(tools))


def responses(world: World) -> list[Any]:
    """What the last request says of the calls before it."""
    parts = world.requests[-1]["contents"][-1]["parts"]
    return [part["function_response"]["response"] for part in parts]


async def an_agent_tool_that_waits(_: Path) -> None:
    world = World([call("inner", request="pay"), call("look", x="1"), text("sorry")])
    inner = agent_of(world, FunctionTool(look, require_confirmation=True), name="inner")
    root = agent_of(world, AgentTool(inner))
    await Driver(AdkAgentRunner(root, tool_policies={"inner": WRITE}), world).turn("go")
    (response,) = responses(world)
    assert str(response.get("error")).startswith("The tool call failed: The agent 'inner'"), (
        f"the model takes {response} for an answer"
    )


async def _calls_of(module: Any, name: str, turn: Driver) -> int:
    """How often ADK calls a function of its own in a turn."""
    calls: list[str] = []
    original = getattr(module, name)

    def counting(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return original(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, counting)
        await turn.turn("go")
    return len(calls)


def _turn_with_a_tool(world: World) -> Driver:
    return Driver(AdkAgentRunner(agent_of(world, look), **READ), world)


async def contents_are_built_once_for_each_model_call(_: Path) -> None:
    world = World([call("look"), text("done")])
    built = await _calls_of(_contents, "_get_contents", _turn_with_a_tool(world))
    assert built == len(world.requests), (
        f"built {built} times for {len(world.requests)} model calls"
    )


async def events_are_not_filtered_one_by_one(_: Path) -> None:
    world = World([call("look"), text("done")])
    looked = await _calls_of(
        _contents, "_should_include_event_in_context", _turn_with_a_tool(world)
    )
    assert not looked, f"one of many passes looked at {looked} events"


async def calls_of_the_history_are_not_listed(_: Path) -> None:
    world = World([call("look"), text("done"), call("look"), text("done")])
    driver = Driver(AdkAgentRunner(agent_of(world, look), **READ), world)
    await driver.turn("go")
    listed: set[str] = set()
    ids = {item.framework_item["id"] for item in driver.history}

    def reading(events: list[Event], collect: Any = _functions._collect_function_call_ids) -> Any:
        listed.update(event.id for event in events)
        return collect(events)

    with pytest.MonkeyPatch.context() as monkeypatch:
        patch = call_ids_of_session.PATCHES[0]
        in_place = getattr(_rehydration_utils, patch.name)
        guarded = patch.guard(reading) if in_place is not patch.original else reading
        monkeypatch.setattr(_rehydration_utils, patch.name, guarded)
        await driver.turn("again")
    assert not listed & ids, f"listed the calls of {len(listed & ids)} events"


async def a_history_is_not_copied_to_look_for_what_is_rare(_: Path) -> None:
    world = World([call("look"), text("done")] * 3)
    driver = Driver(AdkAgentRunner(agent_of(world, look), **READ), world)
    await driver.turn("go")
    first = {item.framework_item["id"] for item in driver.history}
    await driver.turn("go on")
    copied: set[str] = set()

    def copying(original: Original[Any], name: str, copy: Any = Original.copy_field) -> Any:
        if name == "actions":
            copied.add(original.model.id)
        return copy(original, name)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Original, "copy_field", copying)
        await driver.turn("again")
    # ADK goes back to the newest event of an agent, so it has no reason to look at the first turn.
    assert not copied & first, f"copied the actions of {len(copied & first)} events"


async def no_records_are_made_of_a_history_that_nobody_gets(_: Path) -> None:
    world = World([call("look"), text("done")])
    made = await _calls_of(tracing, "user_message_body", _turn_with_a_tool(world))
    assert not made, f"made {made} log records"


async def a_question_beside_a_tool(_: Path) -> None:
    question = call("adk_request_input", "q", message="Whose?")
    world = World([[question, call("look", x="1")], text("done")])

    def answered(item: RequestedToolCall) -> ToolCallRecord | None:
        if item.tool_name == "look":
            return None
        output = {"result": "mine"}
        return ToolCallRecord(item.call_id, item.tool_name, ToolCallStatus.SUCCEEDED, output=output)

    runner = AdkAgentRunner(agent_of(world, request_input, look), **READ)
    await Driver(runner, world, execute=answered).turn("go")
    assert responses(world) == [{"result": "mine"}, {"seen": "1"}]


async def a_server_that_dies_in_a_write(folder: Path) -> None:
    world = World([call("die", text="1"), text("done")])
    env = {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    parameters = StdioServerParameters(
        command=sys.executable, args=[str(MCP_SERVER), str(folder)], env=env
    )
    tools = McpToolset(
        connection_params=StdioConnectionParams(server_params=parameters, timeout=PATIENCE_S)
    )
    try:
        runner = AdkAgentRunner(agent_of(world, tools), tool_policies={"die": WRITE})
        await Driver(runner, world).turn("go")
    finally:
        await tools.close()
    assert responses(world) == [{"error": OUTCOME_UNKNOWN_TOOL_RESULT}], (
        f"the model reads {responses(world)} of a write that may have run"
    )


async def a_server_that_starts_anew_between_two_calls(folder: Path) -> None:
    world = World(
        [call("die", text="1"), call("add", text="2"), call("add", text="3"), text("done")]
    )
    async with lasting_server(folder) as url:
        tools = McpToolset(
            connection_params=StreamableHTTPConnectionParams(url=url, timeout=PATIENCE_S)
        )
        try:
            runner = AdkAgentRunner(
                agent_of(world, tools), tool_policies={"die": WRITE, "add": WRITE}
            )
            await Driver(runner, world).turn("go")
        finally:
            await tools.close()
    # The first of the two was refused, and may not be sent again.
    assert "added 3" in str(responses(world)), f"the new server was not asked: {responses(world)}"


async def branches_whose_attempt_died(_: Path) -> None:
    world = World([text("one"), text("two")] * 2)
    root = ParallelAgent(
        name="both", sub_agents=[agent_of(world, name="one"), agent_of(world, name="two")]
    )
    runner = AdkAgentRunner(root, **READ)
    kept = Checkpoint()
    for attempt in (1, 2):
        await runner.run_model(
            RunModelRequest(
                session_id="s",
                turn_id="t1",
                step_execution_id="RunModel-1",
                attempt=attempt,
                history=[],
                user_message=stored(runner.build_user_message("go").framework_item),
                run_state=None,
                records=[],
                model_calls_so_far=0,
                events=LiveEvents(),
                checkpoint=kept,
            )
        )
    assert len(world.requests) == 2, "a model that had answered was asked again"


def forget_failed_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, A2A_AGENT)


class _Tried:
    """Counts how often Python looks for the A2A agent."""

    def __init__(self) -> None:
        self.times = 0

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        self.times += name == A2A_AGENT
        return None


async def nodes_are_built_without_imports(_: Path) -> None:
    tried = _Tried()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "meta_path", [tried, *sys.meta_path])
        for _number in range(3):
            build_node(LlmAgent(name="root", model="m"))
    assert not tried.times, f"an import that fails was tried {tried.times} times"


async def an_error_that_a_future_cannot_carry(_: Path) -> None:
    def breaks() -> None:
        """Break."""
        raise StopIteration("end")

    world = World([call("breaks"), text("done")])
    turn = asyncio.create_task(
        Driver(AdkAgentRunner(agent_of(world, breaks), **READ), world).turn("go")
    )
    loop = asyncio.get_running_loop()
    trouble = asyncio.Event()
    loop.set_exception_handler(lambda *_: trouble.set())
    waiting = asyncio.create_task(trouble.wait())
    try:
        await asyncio.wait({turn, waiting}, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        assert turn.done(), "the call never ends"
        await turn
    finally:
        loop.set_exception_handler(None)
        for task in (turn, waiting):
            task.cancel()
    assert responses(world) == [{"error": "The tool call failed: StopIteration: end"}]


async def an_agent_behind_branches_has_none(_: Path) -> None:
    """What comes behind a ParallelAgent in a Workflow is in none of its branches."""

    def build(world: TreeWorld) -> Workflow:
        branches = [llm(world, "one"), llm(world, "two")]
        side_by_side = ParallelAgent(name="par", sub_agents=list(branches))
        edges: list[Any] = [("START", side_by_side, between, llm(world, "after", "t"))]
        return Workflow(name="w", edges=edges)

    def between(node_input: Any) -> str:
        return "between"

    scripts: dict[str, Any] = {
        "one": [text("one done")],
        "two": [text("two done")],
        "after": [[call("t", x="1")], text("after done")],
    }
    world = TreeWorld(scripts)
    driver = Driver(AdkAgentRunner(build(world), **READ), world)
    driver.calls_per_step = 2
    await driver.turn("go")
    items = [message.framework_item for message in driver.history]
    for item in items:
        if item["author"] == "after" and (branch := item.get("branch")):
            raise AssertionError(f"an agent behind a ParallelAgent begins in {branch!r}")


async def a_sequence_goes_on_with_all_its_agents(_: Path) -> None:
    """A turn of a resumable App goes on where it began, not with the agent of the last event."""
    world = TreeWorld(
        {
            "root": [[call("transfer_to_agent", agent_name="seq")]],
            "one": [[call("missing")], text("one done")],
            "two": [text("two done")],
        }
    )
    sequence = SequentialAgent(name="seq", sub_agents=[llm(world, "one"), llm(world, "two")])
    app = App(
        name="app",
        root_agent=llm(world, "root", sub_agents=[sequence]),
        resumability_config=ResumabilityConfig(is_resumable=True),
    )
    await Driver(AdkAgentRunner(app, **READ), world).turn("go")
    if not world.requests_of("two"):
        raise AssertionError("the second agent was never asked")


class _SlowLlm(TreeLlm):
    """Takes longer than ADK lets a finished node wait for its turn."""

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
        await asyncio.sleep(0.3)
        async for response in super().generate_content_async(llm_request, stream):
            yield response


async def a_model_that_is_slow_beside_a_finished_node(_: Path) -> None:
    """Once behind a question, once in a nested Workflow that has an output already."""

    def asks(node_input: Any) -> RequestInput:
        return RequestInput(message="Which?", response_schema={"type": "string"})

    def first(node_input: Any) -> str:
        return "first"

    async def second(node_input: Any, ctx: Any) -> None:
        await ctx.run_node(slow, node_input="more")

    def answered(item: RequestedToolCall) -> ToolCallRecord | None:
        if item.tool_name != "adk_request_input":
            return None
        return ToolCallRecord(item.call_id, item.tool_name, ToolCallStatus.SUCCEEDED, output="a")

    for number in (1, 2):
        world = TreeWorld(
            {
                "slow": [[call("t", x="1")], text("slow done")],
                "quick": [text("quick done")],
                "after": [text("after done")],
            }
        )
        slow = llm(world, "slow", "t", model=_SlowLlm)
        dynamic = node(rerun_on_resume=True)(second)
        edges: Any = ("START", asks, slow) if number == 1 else ("START", (first, dynamic))
        lanes = (Workflow(name="nested", edges=[edges]), llm(world, "quick"))
        root = Workflow(
            name="w", edges=[("START", lanes, JoinNode(name="join"), llm(world, "after"))]
        )
        runner = AdkAgentRunner(root, dynamic_agents=[slow] if number == 2 else [], **READ)
        driver = Driver(runner, world, execute=answered)
        driver.calls_per_step = 3
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ReplaySequenceBarrier.__init__, "__defaults__", (0.05,))
            ended = await driver.turn("go")
        assert ended.final_text == "after done"
