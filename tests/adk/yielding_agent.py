"""An agent whose tools write events, for the crash explorer."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.event import Event
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import START, Workflow

from dex_agents import AgentSessionFlow, ToolEffect, ToolPolicy
from dex_agents.testing import Ledger
from dex_agents_google_adk import adk_agent_session_flow
from dex_agents_google_adk.testing import ScriptedModel, tool_call


def build_flow(data_dir: Path) -> AgentSessionFlow:
    """A tool that yields, beside a plain one, and then a Workflow as a tool."""
    ledger = Ledger(data_dir / "ledger.jsonl")

    async def report(x: str, tool_context: ToolContext) -> AsyncGenerator[Any, None]:
        """Report."""
        ledger.record("began", x=x)
        yield Event(message=f"on {x}")  # type: ignore[call-arg]
        tool_context.state["report"] = x
        ledger.record("ended", x=x)
        yield {"value": x}

    def look(x: str) -> str:
        """Look."""
        ledger.record("look", x=x)
        return x

    inner = LlmAgent(
        name="inner",
        model=ScriptedModel([tool_call("look", {"x": "inside"}), "inner done"], ledger=ledger),
        tools=[look],
    )
    answers: list[Any] = [
        [tool_call("report", {"x": "1"}), tool_call("look", {"x": "2"})],
        tool_call("flow", {"request": "q"}),
        "done",
    ]
    flow = Workflow(name="flow", input_schema=str, edges=[(START, inner)])
    tools: list[Any] = [report, look, flow]
    root = LlmAgent(
        name="root",
        model=ScriptedModel(answers, ledger=ledger),
        tools=tools,
    )
    policies = {
        "report": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE),
        "look": ToolPolicy(ToolEffect.READ),
        "flow": ToolPolicy(ToolEffect.READ),
    }
    return adk_agent_session_flow(root, flow_type="Yielding", tool_policies=policies)
