"""An agent whose turns are long, a summary model that notes each request, and a tool."""

from __future__ import annotations

from pathlib import Path

from google.adk.agents import LlmAgent
from google.adk.models.llm_request import LlmRequest

from dex_agents import AgentSessionFlow, CompactionPolicy, ToolEffect
from dex_agents.testing import Ledger
from dex_agents_google_adk import adk_agent_session_flow
from dex_agents_google_adk.testing import (
    ScriptedAnswer,
    ScriptedModel,
    tool_call,
    tool_results,
)

BULK = "x" * 2_000


def ledger(data_dir: Path) -> Ledger:
    """Where requests and tool runs are noted."""
    return Ledger(data_dir / "ledger.jsonl")


def model(entries: Ledger) -> ScriptedModel:
    """Calls the tool once a turn, then answers at length."""

    def answer(request: LlmRequest) -> ScriptedAnswer:
        if tool_results(request):
            return f"answer {BULK}"
        first = (request.contents[0].parts or [])[0].text or ""
        entries.record("asked", first=first[:40])
        return tool_call("look")

    return ScriptedModel(answer)


def summary_model(entries: Ledger) -> ScriptedModel:
    """Notes that it was asked for a summary, and gives one."""

    def answer(request: LlmRequest) -> ScriptedAnswer:
        entries.record("summary")
        return "what happened so far"

    return ScriptedModel(answer)


def build_flow(data_dir: Path) -> AgentSessionFlow:
    """The agent's Flow, with a small window."""
    entries = ledger(data_dir)

    def look() -> str:
        """Look."""
        entries.record("look")
        return "seen"

    return adk_agent_session_flow(
        LlmAgent(name="long", model=model(entries), tools=[look]),
        flow_type="LongAgent",
        default_tool_effect=ToolEffect.READ,
        compaction=CompactionPolicy(context_window_tokens=4_000, kept_turns=1),
        summary_model=summary_model(entries),
    )
