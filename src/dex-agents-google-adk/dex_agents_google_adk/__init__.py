"""Run Google ADK agents as durable agent sessions."""

from __future__ import annotations

from dex_agents_google_adk._credentials import CredentialRequest, CredentialResolver
from dex_agents_google_adk._flow import adk_agent_session_flow
from dex_agents_google_adk._idempotency import (
    IDEMPOTENCY_KEY_CUSTOM_METADATA_KEY,
    idempotency_key_for_tool_call,
)
from dex_agents_google_adk._runner import AdkAgentRunner
from dex_agents_google_adk._session_runner import AdkSessionRunner, SessionFork

__all__ = [
    "IDEMPOTENCY_KEY_CUSTOM_METADATA_KEY",
    "AdkAgentRunner",
    "AdkSessionRunner",
    "CredentialRequest",
    "CredentialResolver",
    "SessionFork",
    "adk_agent_session_flow",
    "idempotency_key_for_tool_call",
]
