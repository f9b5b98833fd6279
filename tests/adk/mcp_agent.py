"""An agent with the tools of a real MCP server, served from another process.

The user's message is the script: a JSON list of responses, each a list of ``[tool, arguments or
text]``. The model
reads how far it is from the request alone, so any process can go on.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.mcp_tool.mcp_session_manager import (
    StdioConnectionParams,
    StreamableHTTPConnectionParams,
)
from google.adk.tools.mcp_tool.mcp_toolset import McpToolset
from mcp import StdioServerParameters

from dex_agents import AgentSessionFlow, ToolEffect, ToolPolicy
from dex_agents.mcp import HttpServer, McpToolSource, StdioServer
from dex_agents.testing import Ledger
from dex_agents_google_adk import adk_agent_session_flow
from dex_agents_google_adk.testing import (
    ScriptedAnswer,
    ScriptedModel,
    tool_call,
    tool_results,
)

SERVER = Path(__file__).parents[1] / "support" / "mcp_server.py"
LIMIT_S = 30
ALLOWED = ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=False)


def script_model(folder: Path) -> ScriptedModel:
    """Makes the calls of the message, then answers with what the last ones gave."""

    def answer(request: LlmRequest) -> ScriptedAnswer:
        contents = request.contents
        asked = max(
            n for n, c in enumerate(contents) if c.parts and (c.parts[0].text or "")[:1] == "["
        )
        script = json.loads((contents[asked].parts or [])[0].text or "")
        done = sum(
            any(p.function_response for p in content.parts or []) for content in contents[asked:]
        )
        asked_ledger(folder).record("asked", tools=sorted(request.tools_dict), round=done)
        if done < len(script):
            return [
                tool_call(name, value if isinstance(value, dict) else {"text": value})
                for name, value in script[done]
            ]
        return json.dumps([(result.name, result.response) for result in tool_results(request)])

    return ScriptedModel(answer)


def asked_ledger(folder: Path) -> Ledger:
    """What the model was offered, and when."""
    return Ledger(folder / "asked.jsonl")


def server_ledger(folder: Path) -> Ledger:
    """What the server did."""
    return Ledger(folder / "ledger.jsonl")


def configure(folder: Path, **settings: Any) -> None:
    """Say how the agent of a folder is made.

    Args:
        settings: ``kind`` source or toolset, a ``url`` for HTTP, ``limit_s`` until the server must
            have answered.
    """
    (folder / "agent.json").write_text(json.dumps(settings))


def build_flow(folder: Path) -> AgentSessionFlow:
    """The agent's Flow."""
    settings: dict[str, Any] = json.loads((folder / "agent.json").read_text())
    env = {"PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)}
    is_source = settings["kind"] == "source"
    make = _source if is_source else _toolset
    limit_s = settings.get("limit_s", LIMIT_S)
    offered = make(folder, settings.get("url"), env, limit_s)
    return adk_agent_session_flow(
        LlmAgent(
            name="root",
            model=script_model(folder),
            tools=[] if is_source else [offered],
        ),
        flow_type="McpAgent",
        tool_sources=[offered] if is_source else None,
        tool_source_listing_timeout=timedelta(seconds=limit_s),
        tool_policies={} if is_source else {"add": ALLOWED, "die": ALLOWED},
    )


def _source(folder: Path, url: str | None, env: Mapping[str, str], limit_s: int) -> Any:
    limit = timedelta(seconds=limit_s)
    server: Any = (
        HttpServer(url) if url else StdioServer(sys.executable, [str(SERVER), str(folder)], env)
    )
    return McpToolSource(
        "notes",
        server,
        tool_policies={"add": ALLOWED, "die": ALLOWED},
        connect_timeout=limit,
        list_timeout=limit,
    )


def _toolset(folder: Path, url: str | None, env: Mapping[str, str], limit_s: int) -> Any:
    params: Any = (
        StreamableHTTPConnectionParams(url=url, timeout=limit_s)
        if url
        else StdioConnectionParams(
            server_params=StdioServerParameters(
                command=sys.executable, args=[str(SERVER), str(folder)], env=dict(env)
            ),
            timeout=limit_s,
        )
    )
    return McpToolset(connection_params=params)
