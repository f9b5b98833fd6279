"""Two agents side by side: ``fast`` answers at once, ``slow`` never in the first attempt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.parallel_agent import ParallelAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from dex_agents import AgentSessionFlow, ToolEffect
from dex_agents.testing import Ledger
from dex_agents_google_adk import adk_agent_session_flow

SIGNATURE = b"\x00\xffsigned"


class Model(BaseLlm):
    """``fast`` calls its tool and then reports; ``slow`` hangs when it is asked for the first time."""

    model: str = "parallel"
    ledger: Ledger

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Note the request, then answer."""
        agent = (llm_request.config.labels or {})["adk_agent_name"]
        self.ledger.record("asked", agent=agent)
        if agent == "slow" and self.ledger.count("asked", agent="slow") == 1:
            await asyncio.sleep(3_600)
        last = (llm_request.contents[-1].parts or [])[-1]
        if agent == "fast" and last.function_response is None:
            call = types.FunctionCall(name="look", args={})
            part = types.Part(function_call=call, thought_signature=SIGNATURE)
        else:
            part = types.Part(text=f"{agent} is done")
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


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
            LlmAgent(name="fast", model=Model(ledger=entries), tools=[look]),
            LlmAgent(name="slow", model=Model(ledger=entries)),
        ],
    )


def build_flow(data_dir: Path) -> AgentSessionFlow:
    """Their Flow."""
    return adk_agent_session_flow(
        build_agent(ledger(data_dir)), flow_type="Parallel", default_tool_effect=ToolEffect.READ
    )
