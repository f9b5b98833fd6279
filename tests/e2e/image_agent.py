"""An agent that sees images, behind ADK's real Gemini class and a server named by a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models.google_llm import Gemini
from google.genai import types

from dex_agents import AgentSessionFlow, LocalDirectoryMediaStore, ToolEffect
from dex_agents_google_adk import adk_agent_session_flow

URL_FILE = "gemini-url"
CHART = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8


def build_flow(data_dir: Path) -> AgentSessionFlow:
    """The agent's Flow; images lie beside the engine's file."""
    os.environ["GOOGLE_API_KEY"] = "loopback"

    def draw() -> dict[str, Any]:
        """Draw a chart."""
        return {"chart": types.Part.from_bytes(data=CHART, mime_type="image/png")}

    model = Gemini(model="gemini-2.5-flash", base_url=(data_dir / URL_FILE).read_text())
    return adk_agent_session_flow(
        LlmAgent(name="painter", model=model, tools=[draw]),
        flow_type="ImageAgent",
        default_tool_effect=ToolEffect.READ,
        media_store=LocalDirectoryMediaStore(data_dir / "media"),
    )
