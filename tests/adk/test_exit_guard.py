"""A ``SystemExit`` or ``KeyboardInterrupt`` of the application's code ends its turn and no process."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.parallel_agent import ParallelAgent
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.agent_tool import AgentTool

from dex_agents import OUTCOME_UNKNOWN_TOOL_RESULT, AgentTurnError
from dex_agents._keyboard import is_from_keyboard
from dex_agents.testing import WorkerProcess, private_engine, session_client
from dex_agents_google_adk import AdkAgentRunner
from support import exiting_agent
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


async def test_a_keyboard_interrupt_of_the_applications_code_ends_no_worker(
    tmp_path: Path,
) -> None:
    flow = exiting_agent.build_flow(tmp_path)
    async with (
        private_engine(tmp_path / "e.db") as engine,
        session_client(flow, server_address=engine.address, cache_dir=tmp_path / "c") as sessions,
    ):
        worker = await WorkerProcess.start(
            "support.exiting_agent:build_flow", server_address=engine.address, data_dir=tmp_path
        )
        places = (*exiting_agent.OF_TURNS, *exiting_agent.OF_TOOLS)
        await asyncio.gather(*(sessions.start_session(place, place) for place in places))
        ends = await asyncio.gather(
            *(sessions.wait_for_turn(place, 1, timeout_s=TURN_S) for place in places)
        )
        assert await worker.stop() == 0
    for place, end in zip(places, ends, strict=True):
        assert end.last_turn is not None
        if place in exiting_agent.OF_TURNS:
            assert f"(KeyboardInterrupt: {place})" in end.last_turn.error, place
        else:
            # It runs once and may have done anything before.
            assert OUTCOME_UNKNOWN_TOOL_RESULT in end.last_turn.final_text, place


def _raised() -> KeyboardInterrupt:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt as error:
        return error


def _struck() -> KeyboardInterrupt:
    """Of a Ctrl-C in the middle of a program."""
    try:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1_000_000):
            pass
    except KeyboardInterrupt as error:
        return error
    raise AssertionError("the signal did not come")


def _handler(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


class _Handlers:
    def method(self, what: str, number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(what)


HANDLERS: dict[str, Any] = {
    "python's own": signal.default_int_handler,
    "a function": _handler,
    "a part of a method, as asyncio has one": functools.partial(_Handlers().method, "x"),
}


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS)
def test_ctrl_c_is_told_from_a_raise(handler: Any) -> None:
    before = signal.signal(signal.SIGINT, handler)
    try:
        assert is_from_keyboard(_struck())
        assert not is_from_keyboard(_raised())
    finally:
        signal.signal(signal.SIGINT, before)
    assert not is_from_keyboard(SystemExit(3))
