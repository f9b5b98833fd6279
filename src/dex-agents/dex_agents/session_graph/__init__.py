"""Pictures of sessions: the Flow that runs them, and what one of them did."""

from __future__ import annotations

from dex_agents.session_graph._flow_graph import flow_mermaid, render_session_flow_graph
from dex_agents.session_graph._history import Box, SessionHistory, TurnHistory
from dex_agents.session_graph._mermaid import history_mermaid
from dex_agents.session_graph._read import read_session_history
from dex_agents.session_graph._svg import history_svg

__all__ = [
    "Box",
    "SessionHistory",
    "TurnHistory",
    "flow_mermaid",
    "history_mermaid",
    "history_svg",
    "read_session_history",
    "render_session_flow_graph",
]
