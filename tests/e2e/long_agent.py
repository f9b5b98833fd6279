"""An agent whose turns are long, a summary model that notes each request, and a tool."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from dex_agents import AgentSessionFlow, CompactionPolicy, ToolEffect
from dex_agents.testing import Ledger
from dex_agents_google_adk import adk_agent_session_flow

BULK = "x" * 2_000


def ledger(data_dir: Path) -> Ledger:
    """Where requests and tool runs are noted."""
    return Ledger(data_dir / "ledger.jsonl")


class LongModel(BaseLlm):
    """Calls the tool once a turn, then answers at length; asked for a summary, it gives one."""

    model: str = "long"
    entries: Any
    is_summary_model: bool = False

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Note the request and answer."""
        parts = llm_request.contents[-1].parts or []
        first = (llm_request.contents[0].parts or [types.Part(text="")])[0].text or ""
        if self.is_summary_model:
            self.entries.record("summary")
            part = types.Part(text="what happened so far")
        elif parts[0].function_response is None:
            self.entries.record("asked", first=first[:40])
            part = types.Part(function_call=types.FunctionCall(name="look", args={}))
        else:
            part = types.Part(text=f"answer {BULK}")
        yield LlmResponse(
            content=types.Content(role="model", parts=[part]),
            finish_reason=types.FinishReason.STOP,
        )


def build_flow(data_dir: Path) -> AgentSessionFlow:
    """The agent's Flow, with a small window."""
    entries = ledger(data_dir)

    def look() -> str:
        """Look."""
        entries.record("look")
        return "seen"

    return adk_agent_session_flow(
        LlmAgent(name="long", model=LongModel(entries=entries), tools=[look]),
        flow_type="LongAgent",
        default_tool_effect=ToolEffect.READ,
        compaction=CompactionPolicy(context_window_tokens=4_000, kept_turns=1),
        summary_model=LongModel(entries=entries, is_summary_model=True),
    )
