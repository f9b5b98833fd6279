"""The agent of the crash tests, served from another process: one call with approval, then a report.

It answers from the request alone, so any process can go on with it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from dex_agents import (
    AgentMessage,
    AgentSessionFlow,
    DeferredToolExecution,
    MessageRole,
    RequestedToolCall,
    RunModelOutcome,
    RunModelRequest,
    ToolCallsRequested,
    ToolEffect,
    ToolExecutionResult,
    TurnCompleted,
)
from dex_agents.testing import Ledger


class CrashRunner:
    """Pays for each message of the user; the effect is the message's first word."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def run_model(self, request: RunModelRequest) -> RunModelOutcome:
        """First the call, then its status as the answer."""
        text = request.user_message["text"]
        self._ledger.record(
            "asked",
            session=request.session_id,
            turn=request.turn_id,
            records=len(request.records),
        )
        if request.run_state is None:
            # A model gives other ids when it is asked again; "two" asks for two calls of such ids.
            asked = self._ledger.count("asked")
            ids = [f"{name}{asked}" for name in "ab"] if "two" in text else ["c"]
            calls = [
                RequestedToolCall(
                    call_id,
                    "pay",
                    {"order": text},
                    ToolEffect(text.split()[0]),
                    "approve" in text,
                )
                for call_id in ids
            ]
            return ToolCallsRequested(calls, {"called": True})
        answer = ",".join(str(record.status) for record in request.records)
        return TurnCompleted(
            [
                AgentMessage(MessageRole.USER, request.user_message, text),
                AgentMessage(MessageRole.ASSISTANT, {"text": answer}, answer),
            ],
            answer,
        )

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        """Pay, for ever written down."""
        self._ledger.record("paid", key=call.idempotency_key, attempt=call.attempt)
        if "hang" in call.arguments["order"]:
            await asyncio.sleep(3_600)
        return ToolExecutionResult("paid")

    def build_user_message(self, text: str) -> AgentMessage:
        """A message of the user."""
        return AgentMessage(MessageRole.USER, {"text": text}, text)


def ledger(data_dir: Path) -> Ledger:
    """Where the runner writes what it did."""
    return Ledger(data_dir / "ledger.jsonl")


def build_flow(data_dir: Path) -> AgentSessionFlow:
    """The agent's Flow."""
    return AgentSessionFlow(CrashRunner(ledger(data_dir)), flow_type="Crash")


def build_flow_of_folder(data_dir: Path) -> AgentSessionFlow:
    """The same for several Workers of one engine, each with its own Flow type and folder."""
    return AgentSessionFlow(CrashRunner(ledger(data_dir)), flow_type=f"Crash-{data_dir.name}")
