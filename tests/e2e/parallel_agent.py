"""Two agents side by side: ``fast`` answers at once, ``slow`` never in the first attempt."""

from __future__ import annotations

import asyncio
from pathlib import Path

from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.parallel_agent import ParallelAgent
from google.adk.models.llm_request import LlmRequest

from dex_agents import AgentSessionFlow, ToolEffect
from dex_agents.testing import Ledger
from dex_agents_google_adk import adk_agent_session_flow
from dex_agents_google_adk.testing import (
    ScriptedAnswer,
    ScriptedModel,
    tool_call,
    tool_results,
)

SIGNATURE = b"\x00\xffsigned"


def model(entries: Ledger) -> ScriptedModel:
    """``fast`` calls its tool and then reports; ``slow`` hangs when it is asked for the first time."""

    async def answer(request: LlmRequest) -> ScriptedAnswer:
        agent = (request.config.labels or {})["adk_agent_name"]
        entries.record("asked", agent=agent)
        if agent == "slow" and entries.count("asked", agent="slow") == 1:
            await asyncio.sleep(3_600)
        if agent == "fast" and not tool_results(request):
            call = tool_call("look")
            call.thought_signature = SIGNATURE
            return call
        return f"{agent} is done"

    return ScriptedModel(answer)


def ledger(data_dir: Path) -> Ledger:
    """Who was asked and what ran."""
    return Ledger(data_dir / "ledger.jsonl")


def build_agent(entries: Ledger) -> ParallelAgent:
    """The agents."""

    def look() -> str:
        """Look."""
        entries.record("look")
        return "seen"

    return ParallelAgent(
        name="both",
        sub_agents=[
            LlmAgent(name="fast", model=model(entries), tools=[look]),
            LlmAgent(name="slow", model=model(entries)),
        ],
    )


def build_flow(data_dir: Path) -> AgentSessionFlow:
    """Their Flow."""
    return adk_agent_session_flow(
        build_agent(ledger(data_dir)), flow_type="Parallel", default_tool_effect=ToolEffect.READ
    )
