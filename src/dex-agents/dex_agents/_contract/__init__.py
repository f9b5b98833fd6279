"""The contract between the session Flow and an agent framework's adapter.

The Flow owns durability: which Step runs what, what is stored, what is retried. A runner owns the
framework: it turns stored items into a model call and a tool call into a result. A runner keeps
nothing between two calls; everything it needs comes with the request and everything that must last
goes back in the outcome.

``Json`` values are what :func:`json.dumps` accepts with ``allow_nan=False``; key order is kept in
storage.
"""

from __future__ import annotations

from dex_agents._contract.abilities import (
    CompactionRequest,
    HistoryCompactor,
    ImageMessageBuilder,
    StateMessageBuilder,
    TurnRemover,
)
from dex_agents._contract.calls import (
    NOT_STORED_KEY,
    AgentEventWriter,
    DeferredToolExecution,
    InterruptKind,
    InterruptRequest,
    RequestedToolCall,
    StepCheckpoint,
    ToolCallRecord,
    ToolCallStatus,
    ToolExecutionResult,
)
from dex_agents._contract.messages import (
    AgentMessage,
    HistorySummary,
    Json,
    MessageRole,
    ModelCallMetadata,
    TokenUsage,
)
from dex_agents._contract.outcomes import (
    ContinueTurn,
    RunModelOutcome,
    ToolCallsRequested,
    TurnCompleted,
)
from dex_agents._contract.runner import AgentFrameworkRunner, RunModelRequest

__all__ = [
    "NOT_STORED_KEY",
    "AgentEventWriter",
    "AgentFrameworkRunner",
    "AgentMessage",
    "CompactionRequest",
    "ContinueTurn",
    "DeferredToolExecution",
    "HistoryCompactor",
    "HistorySummary",
    "ImageMessageBuilder",
    "InterruptKind",
    "InterruptRequest",
    "Json",
    "MessageRole",
    "ModelCallMetadata",
    "RequestedToolCall",
    "RunModelOutcome",
    "RunModelRequest",
    "StateMessageBuilder",
    "StepCheckpoint",
    "TokenUsage",
    "ToolCallRecord",
    "ToolCallStatus",
    "ToolCallsRequested",
    "ToolExecutionResult",
    "TurnCompleted",
    "TurnRemover",
]
