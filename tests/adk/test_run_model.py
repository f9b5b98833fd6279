"""Limits, model errors, records and cancellation in run_model."""

from __future__ import annotations

import asyncio
import gc
import os
from dataclasses import replace
from typing import Any

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.run_config import RunConfig
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner

from dex_agents._contract import (
    RunModelRequest,
    ToolCallRecord,
    ToolCallsRequested,
    ToolCallStatus,
)
from dex_agents._effects import ToolEffect
from dex_agents._errors import (
    AgentTurnError,
    ModelCallError,
)
from dex_agents_google_adk import (
    AdkAgentRunner,
)
from support.adk_oracle import (
    Driver,
    LiveEvents,
    ScriptedLlm,
    World,
    call,
    compare,
    text,
)

READ: Any = {"default_tool_effect": ToolEffect.READ}


def agent_with(world: World, *tools: Any, **fields: Any) -> LlmAgent:
    return LlmAgent(name="root", model=ScriptedLlm(world=world), tools=list(tools), **fields)


async def test_max_llm_calls_counts_the_turn() -> None:
    def tool() -> str:
        """Tool."""
        return "ok"

    world = World([call("tool"), call("tool"), call("tool"), text("done")])
    runner = AdkAgentRunner(agent_with(world, tool), run_config=RunConfig(max_llm_calls=2), **READ)
    with pytest.raises(AgentTurnError, match="limit of `2` exceeded"):
        await Driver(runner, world).turn("go")
    assert len(world.requests) == 2


@pytest.mark.parametrize("limit", [0, 4])
async def test_max_llm_calls_may_be_reached(limit: int) -> None:
    def tool() -> str:
        """Tool."""
        return "ok"

    def build(world: World) -> LlmAgent:
        return agent_with(world, tool)

    await compare(
        build,
        [call("tool"), call("tool"), call("tool"), text("done")],
        run_config=RunConfig(max_llm_calls=limit),
        **READ,
    )


class StatusError(Exception):
    def __init__(self, status_code: int) -> None:
        super().__init__("provider")
        self.status_code = status_code
        self.response = type("Response", (), {"headers": {"retry-after": "3"}})()


@pytest.mark.parametrize(
    "error,expected",
    [
        (StatusError(429), ModelCallError),
        (StatusError(503), ModelCallError),
        (StatusError(400), AgentTurnError),
        (TimeoutError(), ModelCallError),
        (ConnectionResetError(), ModelCallError),
        (KeyError("bug"), KeyError),
    ],
)
async def test_model_errors(
    error: Exception, expected: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    world = World([error])
    with pytest.raises(expected) as caught:
        await Driver(AdkAgentRunner(agent_with(world)), world).turn("go")
    if isinstance(error, StatusError) and expected is ModelCallError:
        assert isinstance(caught.value, ModelCallError)
        assert caught.value.retry_after_s == 3.0
    assert [line for line in caplog.records if line.exc_info] == []
    if expected is KeyError:
        assert caught.value is error


@pytest.mark.parametrize(
    "model",
    ["gemini-2.5-flash", LiteLlm("openai/gpt-x"), LiteLlm("anthropic/claude-x")],
    ids=["gemini", "openai", "anthropic"],
)
async def test_a_missing_key_is_not_asked_for_again(
    model: str | LiteLlm, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in list(os.environ):
        if name.endswith(("_API_KEY", "_CREDENTIALS", "_TOKEN")) or name.startswith("GOOGLE_"):
            monkeypatch.delenv(name)
    runner = AdkAgentRunner(LlmAgent(name="agent", model=model))
    with pytest.raises(AgentTurnError, match="no API key or credentials for the model"):
        await Driver(runner, World([])).turn("go")
    # A client that was not made is closed by a task when it is freed, which fails.
    del runner
    for _ in range(3):
        gc.collect()
        await asyncio.sleep(0)
    assert [line for line in caplog.records if line.exc_info] == []


async def test_plain_adk_logs_as_ever(caplog: pytest.LogCaptureFixture) -> None:
    world = World([StatusError(400)])
    runner = AdkAgentRunner(agent_with(world))
    with pytest.raises(AgentTurnError):
        await Driver(runner, world).turn("go")
    assert not caplog.records
    plain = InMemoryRunner(agent=agent_with(World([StatusError(400)])))
    with pytest.raises(StatusError):
        await plain.run_debug("go", quiet=True)
    assert any(line.exc_info for line in caplog.records)


async def test_model_error_callback_answers() -> None:
    from support.adk_oracle import answer

    def build(world: World) -> LlmAgent:
        return agent_with(
            world,
            on_model_error_callback=lambda callback_context, llm_request, error: answer(
                text("sorry")
            ),
        )

    await compare(build, [RuntimeError("down")])


def request_for(runner: AdkAgentRunner, **fields: Any) -> RunModelRequest:
    base = RunModelRequest(
        session_id="s",
        turn_id="t1",
        step_execution_id="RunModel-1",
        attempt=1,
        history=[],
        user_message=runner.build_user_message("go").framework_item,
        run_state=None,
        records=[],
        model_calls_so_far=0,
        events=LiveEvents(),
    )
    return replace(base, **fields)


async def test_records_must_fit() -> None:
    def tool() -> str:
        """Tool."""
        return "ok"

    runner = AdkAgentRunner(agent_with(World([call("tool"), text("x")]), tool), **READ)
    outcome = await runner.run_model(request_for(runner))
    assert isinstance(outcome, ToolCallsRequested)
    for records in ([], [ToolCallRecord("other", "tool", ToolCallStatus.SUCCEEDED)]):
        with pytest.raises(AgentTurnError, match="waits for the results of"):
            await runner.run_model(
                request_for(runner, run_state=outcome.run_state, records=records)
            )
    with pytest.raises(AgentTurnError, match="version 99"):
        await runner.run_model(request_for(runner, run_state={**outcome.run_state, "v": 99}))
    with pytest.raises(AgentTurnError, match="damaged"):
        await runner.run_model(request_for(runner, run_state={"v": 1}))


async def test_model_is_never_called_without_its_results() -> None:
    def tool() -> str:
        """Tool."""
        return "ok"

    world = World([call("tool"), text("x")])
    runner = AdkAgentRunner(agent_with(world, tool), **READ)
    outcome = await runner.run_model(request_for(runner))
    assert isinstance(outcome, ToolCallsRequested)
    # A call that ADK would not replay, as if its rules had changed.
    state = outcome.run_state
    state["events"][1]["author"] = "somebody else"
    record = ToolCallRecord(outcome.calls[0].call_id, "tool", ToolCallStatus.SUCCEEDED, output="ok")
    with pytest.raises(AgentTurnError, match="before it has replayed"):
        await runner.run_model(request_for(runner, run_state=state, records=[record]))
    assert len(world.requests) == 1


async def test_cancelling_a_run_cancels_the_model_call() -> None:
    cancelled = asyncio.Event()

    class Hanging(ScriptedLlm):
        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.set()
                raise
            yield

    runner = AdkAgentRunner(LlmAgent(name="root", model=Hanging()))
    task = asyncio.create_task(runner.run_model(request_for(runner)))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled.is_set()
