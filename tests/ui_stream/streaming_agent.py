"""An agent in another process whose first attempt of a model call says something and hangs."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dex_agents import (
    AgentMessage,
    AgentSessionFlow,
    DeferredToolExecution,
    MessageRole,
    RunModelOutcome,
    RunModelRequest,
    TokenUsage,
    ToolExecutionResult,
    TurnCompleted,
)


class StreamingRunner:
    """Says which attempt it is."""

    async def run_model(self, request: RunModelRequest) -> RunModelOutcome:
        """The first attempt never ends."""
        text = f"This is attempt {request.attempt}."
        request.events.emit("text_delta", text=text, agent_name="root")
        if request.attempt == 1:
            await asyncio.sleep(3_600)
        message = AgentMessage(MessageRole.ASSISTANT, {"text": text}, text)
        return TurnCompleted([message], text, TokenUsage(3, 2, 1))

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        """There is no tool."""
        raise NotImplementedError

    def build_user_message(self, text: str) -> AgentMessage:
        """A message of the user."""
        return AgentMessage(MessageRole.USER, {"text": text}, text)


def build_flow(data_dir: Path) -> AgentSessionFlow:
    """The agent's Flow."""
    return AgentSessionFlow(StreamingRunner(), flow_type="Streaming")
