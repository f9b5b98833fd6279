"""The agent of the kill tests: one response with a call of every effect class, then a report.

Everything that must be judged from outside is written to files with a sync: what the tools did, and what the model was
asked. The model answers from the request alone, so any process can continue it.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from dex_agents import AgentSessionFlow, AgentSessionOptions, ToolEffect, ToolPolicy
from dex_agents.testing import Ledger
from dex_agents_google_adk import adk_agent_session_flow, idempotency_key_for_tool_call

FLOW_TYPE = "ChaosAgent"
CALLS = ("look", "put", "charge", "notify")


class ChaosModel(BaseLlm):
    """Calls all four tools once a turn, echoing the turn's text, then reports what it read."""

    model: str = "chaos"
    requests: Path

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Record the request, wait a little, answer."""
        contents = [c.model_dump(mode="json", exclude_none=True) for c in llm_request.contents]
        _append(self.requests, contents)
        await asyncio.sleep(0.02)
        parts = llm_request.contents[-1].parts or []
        answers = [p.function_response for p in parts if p.function_response is not None]
        if answers:
            text = ";".join(f"{a.name}={json.dumps(a.response, sort_keys=True)}" for a in answers)
            yield _response([types.Part(text=f"report: {text}")])
            return
        order = parts[0].text or ""
        yield _response(
            [
                types.Part(function_call=types.FunctionCall(name=name, args={"order": order}))
                for name in CALLS
            ]
        )


def _response(parts: list[types.Part]) -> LlmResponse:
    return LlmResponse(
        content=types.Content(role="model", parts=parts),
        finish_reason=types.FinishReason.STOP,
        usage_metadata=types.GenerateContentResponseUsageMetadata(
            prompt_token_count=7, candidates_token_count=3
        ),
    )


def _append(path: Path, value: Any) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, (json.dumps(value) + "\n").encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def requests_file(data_dir: Path) -> Path:
    """Where the model's requests are written, one JSON list of contents a line."""
    return data_dir / "requests.jsonl"


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
        model=ChaosModel(requests=requests_file(data_dir)),
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
