"""A blocking tool that takes longer than the default heartbeat timeout."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from google.adk.agents import LlmAgent

from dex_agents import AgentSessionFlow, ToolEffect, ToolPolicy
from dex_agents.testing import (
    Ledger,
    WorkerProcess,
    private_engine,
    read_step_history,
    session_client,
)
from dex_agents_google_adk import adk_agent_session_flow
from dex_agents_google_adk.testing import ScriptedModel, tool_call

BLOCKS_S = 90.0


def build_flow(data_dir: Path) -> AgentSessionFlow:
    """An agent with a tool that blocks its thread."""
    ledger = Ledger(data_dir / "ledger.jsonl")

    def export() -> str:
        """Export everything."""
        ledger.record("export")
        time.sleep(BLOCKS_S)
        return "exported"

    return adk_agent_session_flow(
        LlmAgent(
            name="exporter", model=ScriptedModel([tool_call("export"), "done"]), tools=[export]
        ),
        flow_type="Exporter",
        tool_policies={
            "export": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=False)
        },
    )


@pytest.mark.long
async def test_a_tool_that_blocks_for_90_s_finishes_in_one_attempt(tmp_path: Path) -> None:
    async with (
        private_engine(tmp_path / "engine.db") as engine,
        session_client(build_flow(tmp_path), server_address=engine.address) as sessions,
    ):
        worker = await WorkerProcess.start(
            "e2e.test_long_tool:build_flow", server_address=engine.address, data_dir=tmp_path
        )
        await sessions.start_session("s", "export it")
        snapshot = await sessions.wait_for_turn("s", 1, timeout_s=BLOCKS_S + 30)
        assert snapshot.last_turn is not None
        assert snapshot.last_turn.final_text == "done"
        assert Ledger(tmp_path / "ledger.jsonl").count("export") == 1
        rows = await read_step_history(engine.address, "s")
        (tool,) = [row for row in rows if row.step_type == "CallSingleAttemptTool"]
        assert (tool.attempts, tool.outcome) == (1, "completed")
        assert tool.duration_s >= BLOCKS_S
        await worker.stop()
