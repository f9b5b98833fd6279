"""A model without a provider, for tests of agents; ``dex_agents.testing`` has the rest."""

from __future__ import annotations

from dex_agents_google_adk.testing._scripted_model import (
    ScriptedAnswer,
    ScriptedModel,
    ScriptedResponder,
    tool_call,
    tool_results,
)

__all__ = ["ScriptedAnswer", "ScriptedModel", "ScriptedResponder", "tool_call", "tool_results"]
