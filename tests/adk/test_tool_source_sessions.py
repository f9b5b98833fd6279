"""Tools of sources in real sessions: Steps, retries, order and what a Step leaves behind."""

from __future__ import annotations

import asyncio
import inspect
import socket
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents.llm_agent import LlmAgent

from dex_agents import (
    AgentSessionFlow,
    InterruptKind,
    InterruptRequest,
    SourceToolCall,
    ToolCallStepOptions,
    ToolEffect,
    ToolExecutionResult,
    ToolOutcomeUnknownError,
    ToolSource,
)
from dex_agents.mcp import HttpServer, McpToolSource
from dex_agents.testing import PrivateEngine, private_engine, read_step_history, step_shape
from dex_agents_google_adk import AdkAgentRunner, adk_agent_session_flow
from support.adk_oracle import ScriptedLlm, World, call, text
from support.serving import serve
from support.tool_source import ScriptedSource

TURN_S = 60.0
WRITE = SourceToolCall(
    ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=False, is_ordered_write=True
)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[PrivateEngine]:
    async with private_engine(tmp_path / "engine.db") as engine:
        yield engine


async def one_turn(
    engine: PrivateEngine, folder: Path, world: World, source: ToolSource
) -> list[str]:
    """Step shape of a session's first turn; the Flow is made by hand around the runner."""
    root = LlmAgent(name="root", model=ScriptedLlm(world=world))
    runner = AdkAgentRunner(root, tool_sources=[source])
    flow = AgentSessionFlow(runner, flow_type=f"Source{id(source)}")
    async with serve(engine.address, flow, folder) as sessions:
        await sessions.start_session("s", "go")
        await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
    return step_shape(await read_step_history(engine.address, "s"))


def answers(world: World) -> dict[str, Any]:
    parts = world.requests[1]["contents"][-1]["parts"]
    return {p["function_response"]["name"]: p["function_response"]["response"] for p in parts}


async def test_each_call_runs_once_in_a_step_of_its_own(
    engine: PrivateEngine, tmp_path: Path
) -> None:
    running: list[str] = []

    async def pay(execution: Any) -> Any:
        assert not running
        running.append(execution.tool_name)
        await asyncio.sleep(0.05)
        running.remove(execution.tool_name)
        return execution.idempotency_key

    source = ScriptedSource(
        ["look", "pay", "send"],
        calls={"pay": WRITE, "send": WRITE},
        runs={"pay": pay, "send": pay},
    )
    world = World([[call("pay", id="1"), call("look", id="2"), call("send", id="3")], text("done")])
    shape = await one_turn(engine, tmp_path, world, source)
    tools = ["CallSingleAttemptTool", "CallSingleAttemptTool", "CallTool"]
    assert sorted(shape) == ["AwaitUserMessage", *tools, "ResumeTurn", "RunModel", "RunModel"]
    assert sorted(source.ran()) == ["look", "pay", "send"]
    assert source.ran().index("pay") < source.ran().index("send")
    assert source.listed == 2
    assert answers(world)["look"] == {"id": "2"}


async def test_a_server_that_never_answers_leaves_the_turn_without_its_tools(
    engine: PrivateEngine, tmp_path: Path
) -> None:
    second = timedelta(seconds=1)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        server = HttpServer(f"http://127.0.0.1:{deaf.getsockname()[1]}/mcp")
        source = McpToolSource("notes", server, connect_timeout=second, list_timeout=second)
        world = World([text("done")])
        shape = await one_turn(engine, tmp_path, world, source)
    # The turn ended well: a failed listing is no failed attempt of the model call.
    assert shape == ["AwaitUserMessage", "RunModel"]
    (row,) = [
        row
        for row in await read_step_history(engine.address, "s")
        if (row.step_type, row.method) == ("RunModel", "execute")
    ]
    assert (row.attempts, row.outcome) == (1, "completed")
    (request,) = world.requests
    assert not request["config"].get("tools")


async def test_started_tasks_are_not_polled(engine: PrivateEngine, tmp_path: Path) -> None:
    async def start(execution: Any) -> Any:
        raise ToolOutcomeUnknownError("it started task 7, which nobody waits for")

    async def ask(execution: Any) -> Any:
        return ToolExecutionResult(interrupt=InterruptRequest(InterruptKind.LONG_RUNNING))

    source = ScriptedSource(
        ["look", "pay", "later", "send"],
        calls={"pay": WRITE, "send": WRITE},
        runs={"look": start, "pay": start, "later": ask, "send": ask},
    )
    world = World([[call(name, id="1") for name in ("look", "pay", "later", "send")], text("done")])
    shape = await one_turn(engine, tmp_path, world, source)
    assert set(shape) == {
        "AwaitUserMessage",
        "RunModel",
        "CallTool",
        "CallSingleAttemptTool",
        "ResumeTurn",
    }
    found = answers(world)
    assert found["look"] == {
        "error": "The tool call failed: it started task 7, which nobody waits for"
    }
    assert "outcome of this tool call is unknown" in found["pay"]["error"]
    assert "did not succeed, so this one was skipped" in found["send"]["error"]
    assert "started something whose end a session does not wait for" in found["later"]["error"]
    assert sorted(source.ran()) == ["later", "look", "pay"]


async def test_step_options_of_a_source(engine: PrivateEngine, tmp_path: Path) -> None:
    async def fail(execution: Any) -> Any:
        if execution.tool_name == "slow":
            await asyncio.sleep(3_600)
        raise ConnectionError("no")

    second = timedelta(seconds=1)
    source = ScriptedSource(
        ["often", "once", "slow"],
        runs={"often": fail, "once": fail, "slow": fail},
        options={
            "often": ToolCallStepOptions(None, 4, second, second),
            "once": ToolCallStepOptions(maximum_attempts=1),
            "slow": ToolCallStepOptions(second, 1),
        },
    )
    world = World([[call(name, id="1") for name in ("often", "once", "slow")], text("done")])
    await one_turn(engine, tmp_path, world, source)
    assert [source.ran().count(name) for name in ("often", "once", "slow")] == [4, 1, 1]


def test_defaults() -> None:
    parameters = inspect.signature(adk_agent_session_flow).parameters
    assert parameters["tool_sources"].default is None
    assert parameters["tool_source_listing_timeout"].default == timedelta(seconds=10)
