"""The agent of the kill tests: one response with a call of every effect class, then a report.

Everything that must be judged from outside is written to files with a sync: what the tools did, and what the model was
asked. The model answers from the request alone, so any process can continue it.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from google.adk.agents import LlmAgent
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.tool_context import ToolContext

from dex_agents import AgentSessionFlow, AgentSessionOptions, ToolEffect, ToolPolicy
from dex_agents.testing import Ledger
from dex_agents_google_adk import adk_agent_session_flow, idempotency_key_for_tool_call
from dex_agents_google_adk.testing import (
    ScriptedAnswer,
    ScriptedModel,
    tool_call,
    tool_results,
)

FLOW_TYPE = "ChaosAgent"
CALLS = ("look", "put", "charge", "notify")


async def _answer(request: LlmRequest) -> ScriptedAnswer:
    """Calls all four tools once a turn, echoing the turn's text, then reports what it read."""
    await asyncio.sleep(0.02)
    results = tool_results(request)
    if results:
        read = (f"{r.name}={json.dumps(r.response, sort_keys=True)}" for r in results)
        return f"report: {';'.join(read)}"
    order = (request.contents[-1].parts or [])[0].text or ""
    return [tool_call(name, {"order": order}) for name in CALLS]


def requests(data_dir: Path) -> Ledger:
    """Where the model's requests are written."""
    return Ledger(data_dir / "requests.jsonl")


def ledger(data_dir: Path) -> Ledger:
    """Where the tools write what they did."""
    return Ledger(data_dir / "ledger.jsonl")


def build_flow(data_dir: Path) -> AgentSessionFlow:
    """The chaos agent's Flow."""
    entries = ledger(data_dir)

    async def look(order: str) -> dict[str, str]:
        """Look at an order."""
        entries.record("look", order=order)
        await asyncio.sleep(0.01)
        return {"seen": order}

    async def put(order: str, tool_context: ToolContext) -> dict[str, str]:
        """Store an order under its key."""
        entries.record("put", order=order, key=idempotency_key_for_tool_call(tool_context))
        await asyncio.sleep(0.01)
        return {"stored": order}

    async def charge(order: str) -> dict[str, str]:
        """Charge for an order."""
        entries.record("charge", order=order)
        await asyncio.sleep(0.01)
        return {"charged": order}

    def notify(order: str) -> str:
        """Tell the customer."""
        entries.record("notify", order=order)
        return f"told {order}"

    agent = LlmAgent(
        name="chaos",
        model=ScriptedModel(_answer, ledger=requests(data_dir)),
        instruction="Handle the order.",
        tools=[look, put, charge, notify],
    )
    return adk_agent_session_flow(
        agent,
        flow_type=FLOW_TYPE,
        tool_policies={
            "look": ToolPolicy(ToolEffect.READ),
            "put": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE),
            "charge": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=False),
            # notify has no policy: unclassified, it runs once after approval
        },
        options=AgentSessionOptions(),
    )
