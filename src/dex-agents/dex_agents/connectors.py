"""Operations of connectors as tools of an agent.

What a connector package must have for that is :class:`ConnectorOperation`, a small protocol.
"""

from __future__ import annotations

from dex_agents._connectors.call import ConnectorCall, connector_call_id
from dex_agents._connectors.operation import (
    ConnectionReference,
    ConnectorOperation,
    ConnectorOutcome,
    ConnectorResult,
    OperationKind,
    RetrySafety,
)
from dex_agents._connectors.source import ConnectorTool, ConnectorToolSource, connector_tool

__all__ = [
    "ConnectionReference",
    "ConnectorCall",
    "ConnectorOperation",
    "ConnectorOutcome",
    "ConnectorResult",
    "ConnectorTool",
    "ConnectorToolSource",
    "OperationKind",
    "RetrySafety",
    "connector_call_id",
    "connector_tool",
]
