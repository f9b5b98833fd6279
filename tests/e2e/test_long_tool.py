"""A blocking tool that takes longer than the default heartbeat timeout."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from dex import AsyncClient, BlobCacheConfig, ClientOptions, Registry, WorkerTarget, open_blob_cache
from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from dex_agents import AgentSessionClient, AgentSessionFlow, ToolEffect, ToolPolicy
from dex_agents.testing import Ledger, WorkerProcess, private_engine, read_step_history
from dex_agents_google_adk import adk_agent_session_flow

BLOCKS_S = 90.0


class OneCall(BaseLlm):
    """Calls the tool once, then answers."""

    model: str = "one-call"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        parts = llm_request.contents[-1].parts or []
        is_answered = any(part.function_response for part in parts)
        part = (
            types.Part(text="done")
            if is_answered
            else types.Part(function_call=types.FunctionCall(name="export", args={}))
        )
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def build_flow(data_dir: Path) -> AgentSessionFlow:
    """An agent with a tool that blocks its thread."""
    ledger = Ledger(data_dir / "ledger.jsonl")

    def export() -> str:
        """Export everything."""
        ledger.record("export")
        time.sleep(BLOCKS_S)
        return "exported"

    return adk_agent_session_flow(
        LlmAgent(name="exporter", model=OneCall(), tools=[export]),
        flow_type="Exporter",
        tool_policies={
            "export": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=False)
        },
    )


@pytest.mark.long
async def test_a_tool_that_blocks_for_90_s_finishes_in_one_attempt(tmp_path: Path) -> None:
    async with private_engine(tmp_path / "engine.db") as engine:
        worker = await WorkerProcess.start(
            "e2e.test_long_tool:build_flow", server_address=engine.address, data_dir=tmp_path
        )
        flow = build_flow(tmp_path)
        client = AsyncClient(
            Registry([flow], allow_async_handlers=True),
            open_blob_cache(BlobCacheConfig(str(tmp_path / "client-cache"), 1 << 20)),
            ClientOptions(server_address=engine.address, worker_target=WorkerTarget(pull=True)),
        )
        sessions = AgentSessionClient(client, flow)
        await sessions.start_session("s", "export it")
        snapshot = await sessions.wait_for_turn("s", 1, timeout_s=BLOCKS_S + 30)
        assert snapshot.last_turn is not None
        assert snapshot.last_turn.final_text == "done"
        assert Ledger(tmp_path / "ledger.jsonl").count("export") == 1
        rows = await read_step_history(engine.address, "s")
        (tool,) = [row for row in rows if row.step_type == "CallSingleAttemptTool"]
        assert (tool.attempts, tool.outcome) == (1, "completed")
        assert tool.duration_s >= BLOCKS_S
        await client.close()
        await worker.stop()
