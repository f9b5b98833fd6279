"""The benchmark's agent: a model that answers at once and a tool that does nothing."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from dex_agents import AgentSessionFlow, ToolEffect, ToolPolicy
from dex_agents_google_adk import adk_agent_session_flow

FLOW_TYPE = "BenchAgent"
DELTAS = ("All ", "of it ", "is ", "done.")


class InstantModel(BaseLlm):
    """Calls ``look`` as often as the user's message ``call N`` says, else answers in four deltas."""

    model: str = "instant"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Answer without delay."""
        parts = llm_request.contents[-1].parts or []
        text = parts[0].text or ""
        if text.startswith("call "):
            calls = [
                types.Part(function_call=types.FunctionCall(name="look", args={"item": index}))
                for index in range(int(text.removeprefix("call ")))
            ]
            yield _answer(calls)
            return
        if stream:
            for delta in DELTAS:
                yield LlmResponse(
                    content=types.Content(role="model", parts=[types.Part(text=delta)]),
                    partial=True,
                )
        yield _answer([types.Part(text="".join(DELTAS))])


def _answer(parts: list[types.Part]) -> LlmResponse:
    return LlmResponse(
        content=types.Content(role="model", parts=parts),
        finish_reason=types.FinishReason.STOP,
        usage_metadata=types.GenerateContentResponseUsageMetadata(
            prompt_token_count=10, candidates_token_count=4
        ),
    )


async def look(item: int) -> dict[str, Any]:
    """Look at one item."""
    return {"item": item, "status": "fine"}


def build_agent() -> LlmAgent:
    """The agent, for both plain ADK and the session Flow."""
    return LlmAgent(name="bench", model=InstantModel(), instruction="Be quick.", tools=[look])


def build_flow(_data: Path | None = None) -> AgentSessionFlow:
    """The Flow of :func:`build_agent`."""
    return adk_agent_session_flow(
        build_agent(),
        flow_type=FLOW_TYPE,
        tool_policies={"look": ToolPolicy(ToolEffect.READ)},
    )
