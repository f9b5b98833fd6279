"""What a model or tool must not be able to do to a session."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.llm_agent import LlmAgent
from google.adk.apps.app import App
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin

from dex_agents import AgentTurnError, DeferredToolExecution, ModelCallError, ToolEffect
from dex_agents_google_adk import AdkAgentRunner
from support.adk_oracle import Driver, ScriptedLlm, World, call, text
from support.polling import until
from support.waiting import TURN_S, session

NAMES = [
    "adk_request_confirmation",
    "adk_request_credential",
    "adk_request_input",
    "dex_agents_yield",
]


def runner_of(world: World, *tools: Any, **fields: Any) -> AdkAgentRunner:
    root = LlmAgent(name="root", model=ScriptedLlm(world=world), tools=list(tools), **fields)
    return AdkAgentRunner(root)


def write(world: World) -> Any:
    def pay() -> str:
        """Pay."""
        world.ran("pay")
        return "paid"

    return pay


@pytest.mark.parametrize("name", [*NAMES, ""])
async def test_a_model_cannot_call_framework_names(name: str) -> None:
    world = World([[call("pay"), call(name)], text("done")])
    driver = Driver(runner_of(world, write(world)), world)
    outcome = await driver.turn("go")
    assert outcome.final_text == "done"
    (asked,) = driver.requested
    assert (asked.tool_name, asked.requires_approval) == ("pay", True)
    assert world.executed == [("pay", {})]
    answers = [part["function_response"] for part in world.requests[1]["contents"][-1]["parts"]]
    assert answers[0]["response"] == {"result": "paid"}
    assert "no tool with that name" in answers[1]["response"]["error"]


async def test_a_call_that_a_callback_puts_in_twice_is_two_calls() -> None:
    async def double(callback_context: CallbackContext, llm_response: LlmResponse) -> None:
        content = llm_response.content
        if content is not None and content.parts and content.parts[0].function_call:
            content.parts = content.parts * 2  # the very same object

    world = World([[call("pay")], text("done")])
    driver = Driver(runner_of(world, write(world), after_model_callback=double), world)
    assert (await driver.turn("go")).final_text == "done"
    first, second = driver.requested
    assert second.call_id == f"{first.call_id}-2"
    assert world.executed == [("pay", {})] * 2
    answers = [part["function_response"] for part in world.requests[1]["contents"][-1]["parts"]]
    assert [answer["response"] for answer in answers] == [{"result": "paid"}] * 2


@pytest.mark.parametrize("where", ["after_tool_callback", "before_tool_callback"])
async def test_a_cancellation_by_a_callback_completes_no_turn(where: str) -> None:
    world = World([[call("pay")], text("done")])

    def cancels(*_: Any, **__: Any) -> None:
        raise asyncio.CancelledError

    runner = runner_of(world, write(world), **{where: cancels})
    with pytest.raises(AgentTurnError, match="without the results of"):
        await asyncio.wait_for(Driver(runner, world).turn("go"), 20)


async def test_a_cancellation_before_the_model_completes_no_turn() -> None:
    world = World([text("done")])

    def cancels(*_: Any, **__: Any) -> None:
        raise asyncio.CancelledError

    runner = runner_of(world, before_model_callback=cancels)
    with pytest.raises((ModelCallError, AgentTurnError)):
        await asyncio.wait_for(Driver(runner, world).turn("go"), 20)


def execution(name: str) -> DeferredToolExecution:
    return DeferredToolExecution(
        "s",
        "t1",
        "c1",
        name,
        {},
        ToolEffect.UNCLASSIFIED,
        "root",
        f"step-{name}",
        1,
        f"s/t1/{name}",
    )


@pytest.mark.parametrize("error", [StopIteration("end"), KeyboardInterrupt(), GeneratorExit()])
async def test_what_a_future_cannot_carry_is_an_ordinary_failure(error: BaseException) -> None:
    def breaks() -> None:
        """Break."""
        raise error

    runner = runner_of(World([]), breaks)
    with pytest.raises(RuntimeError, match=type(error).__name__):
        await asyncio.wait_for(runner.execute_deferred_tool_call(execution("breaks")), 20)


async def test_hanging_functions_keep_no_other_from_running() -> None:
    go_on = threading.Event()

    def hang() -> None:
        """Hang."""
        go_on.wait(60)

    def quick() -> str:
        """Quick."""
        return "ok"

    root = LlmAgent(name="root", model=ScriptedLlm(world=World([])), tools=[hang, quick])
    runner = AdkAgentRunner(root, tool_threads=2)
    hanging = [
        asyncio.create_task(runner.execute_deferred_tool_call(execution("hang"))) for _ in range(8)
    ]
    try:
        await asyncio.sleep(0)
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
        result = await asyncio.wait_for(runner.execute_deferred_tool_call(execution("quick")), 20)
        assert result.output == "ok"
    finally:
        go_on.set()


async def test_results_that_break_while_they_are_read_are_kept() -> None:
    class Broken(dict[str, Any]):
        def items(self) -> Any:
            raise RuntimeError("no items")

    def odd() -> Any:
        """Odd."""
        return {"view": memoryview(b"x"), "broken": Broken(a=1)}

    runner = runner_of(World([]), odd)
    result = await runner.execute_deferred_tool_call(execution("odd"))
    assert isinstance(result.output, str) or "view" in result.output


async def test_error_callbacks_hear_of_a_cancelled_call(tmp_path: Path) -> None:
    entered = asyncio.Event()
    heard: list[str] = []

    async def waits() -> str:
        """Wait."""
        entered.set()
        await asyncio.Event().wait()
        return "never"

    class Plugin(BasePlugin):
        async def on_tool_error_callback(self, *, error: BaseException, **_: Any) -> None:
            heard.append(f"plugin {type(error).__name__}")
            raise LookupError("broken cleanup")

    def on_error(tool: Any, args: Any, tool_context: Any, error: BaseException) -> Any:
        heard.append(f"agent {type(error).__name__}")
        return {"never": "used"}

    world = World([call("waits"), text("after")])
    model = ScriptedLlm(world=world)
    root = LlmAgent(name="root", model=model, tools=[waits], on_tool_error_callback=on_error)
    app = App(name="root", root_agent=root, plugins=[Plugin("cleans")])
    async with session(app, tmp_path) as sessions:
        await asyncio.wait_for(entered.wait(), TURN_S)
        assert await sessions.cancel_turn("s")
        await until(lambda: len(heard) == 2)
        await sessions.send_user_message("s", "and?")
        snapshot = await sessions.wait_for_turn("s", 2, timeout_s=TURN_S)
    assert heard == ["plugin CancelledError", "agent CancelledError"]
    assert snapshot.last_turn is not None and snapshot.last_turn.final_text == "after"
