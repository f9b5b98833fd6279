"""An agent with the tools of a real MCP server, served from another process.

The user's message is the script: a JSON list of responses, each a list of ``[tool, arguments or
text]``. The model
reads how far it is from the request alone, so any process can go on.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.mcp_tool.mcp_session_manager import (
    StdioConnectionParams,
    StreamableHTTPConnectionParams,
)
from google.adk.tools.mcp_tool.mcp_toolset import McpToolset
from google.genai import types
from mcp import StdioServerParameters

from dex_agents import AgentSessionFlow, ToolEffect, ToolPolicy
from dex_agents.mcp import HttpServer, McpToolSource, StdioServer
from dex_agents.testing import Ledger
from dex_agents_google_adk import adk_agent_session_flow

SERVER = Path(__file__).parents[1] / "support" / "mcp_server.py"
LIMIT_S = 30
ALLOWED = ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE, requires_approval=False)


class ScriptModel(BaseLlm):
    """Makes the calls of the message, then answers with what the last ones gave."""

    model: str = "script"
    folder: Path

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Answer from the request."""
        contents = llm_request.contents
        asked = max(
            n for n, c in enumerate(contents) if c.parts and (c.parts[0].text or "")[:1] == "["
        )
        script = json.loads((contents[asked].parts or [])[0].text or "")
        done = sum(
            any(p.function_response for p in content.parts or []) for content in contents[asked:]
        )
        asked_ledger(self.folder).record("asked", tools=sorted(llm_request.tools_dict), round=done)
        if done < len(script):
            parts = [
                types.Part(
                    function_call=types.FunctionCall(
                        name=name, args=value if isinstance(value, dict) else {"text": value}
                    )
                )
                for name, value in script[done]
            ]
        else:
            answers = [p.function_response for p in contents[-1].parts or [] if p.function_response]
            found = [(answer.name, answer.response) for answer in answers]
            parts = [types.Part(text=json.dumps(found))]
        yield LlmResponse(
            content=types.Content(role="model", parts=parts), finish_reason=types.FinishReason.STOP
        )


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
            model=ScriptModel(folder=folder),
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
