"""What the model reads of a call that was approved with other arguments."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.agents.llm_agent import LlmAgent

from dex_agents import RequestedToolCall, ToolCallRecord, ToolCallStatus, ToolEffect
from dex_agents_google_adk import AdkAgentRunner
from support.adk_oracle import Driver, ScriptedLlm, World, call, text

EDITED = {"amount": 90}
BOTH = {"approved_with_arguments": EDITED}


@pytest.mark.parametrize(
    ("output", "response"),
    [
        ({"paid": True}, {"paid": True, **BOTH}),
        ("paid", {"result": "paid", **BOTH}),
        (None, {"result": None, **BOTH}),
        (
            {"approved_with_arguments": "mine"},
            {"result": {"approved_with_arguments": "mine"}, **BOTH},
        ),
    ],
)
async def test_the_response_holds_what_was_approved(output: Any, response: Any) -> None:
    def pay(amount: int) -> None:
        """Pay."""

    def edited(item: RequestedToolCall) -> ToolCallRecord:
        return ToolCallRecord(
            item.call_id,
            item.tool_name,
            ToolCallStatus.SUCCEEDED,
            output=output,
            edited_arguments=EDITED,
        )

    world = World([call("pay", amount=900), text("done")])
    agent = LlmAgent(name="root", model=ScriptedLlm(world=world), tools=[pay])
    runner = AdkAgentRunner(agent, default_tool_effect=ToolEffect.READ)
    await Driver(runner, world, execute=edited).turn("go")
    asked, answered = world.requests[1]["contents"][-2:]
    assert asked["parts"][0]["function_call"]["args"] == {"amount": 900}
    assert answered["parts"][0]["function_response"]["response"] == response


async def test_a_failure_holds_it_too() -> None:
    def pay(amount: int) -> None:
        """Pay."""

    def edited(item: RequestedToolCall) -> ToolCallRecord:
        return ToolCallRecord(
            item.call_id,
            item.tool_name,
            ToolCallStatus.FAILED,
            error="no money",
            edited_arguments=EDITED,
        )

    world = World([call("pay", amount=900), text("done")])
    agent = LlmAgent(name="root", model=ScriptedLlm(world=world), tools=[pay])
    runner = AdkAgentRunner(agent, default_tool_effect=ToolEffect.READ)
    await Driver(runner, world, execute=edited).turn("go")
    (part,) = world.requests[1]["contents"][-1]["parts"]
    assert part["function_response"]["response"] == {
        "error": "The tool call failed: no money",
        **BOTH,
    }
