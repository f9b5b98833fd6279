"""An agent with the operations of the ledger connector, served from another process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent

from adk.mcp_agent import script_model
from dex_agents import AgentSessionFlow, ToolEffect, ToolPolicy
from dex_agents.connectors import ConnectorToolSource, connector_tool
from dex_agents_google_adk import adk_agent_session_flow
from support.ledger_connector import REFERENCE, Books, operations

TOOLS = ("balance", "transfer", "pay")


def flow_of(
    folder: Path,
    tools: tuple[str, ...] = TOOLS,
    policies: dict[str, ToolPolicy] | None = None,
    **changes: Any,
) -> AgentSessionFlow:
    """The agent's Flow with some of the tools."""
    known = operations(Books(folder))
    source = ConnectorToolSource([connector_tool(known[name], REFERENCE) for name in tools])
    return adk_agent_session_flow(
        LlmAgent(name="root", model=script_model(folder)),
        flow_type="LedgerAgent",
        tool_sources=[source],
        tool_policies=policies,
        **changes,
    )


def build_flow(folder: Path) -> AgentSessionFlow:
    """With all reviewed operations."""
    return flow_of(folder)


def build_freely_flow(folder: Path) -> AgentSessionFlow:
    """In which nobody is asked."""
    unasked = {
        "transfer": ToolPolicy(ToolEffect.IDEMPOTENT_WRITE, requires_approval=False),
        "pay": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=False),
    }
    return flow_of(folder, policies=unasked)


def build_smaller_flow(folder: Path) -> AgentSessionFlow:
    """After a release without transfers."""
    return flow_of(folder, ("balance", "pay"))
