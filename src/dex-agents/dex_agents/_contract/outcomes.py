"""How one model call can end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dex_agents._arguments import check_fields, check_items
from dex_agents._contract.calls import RequestedToolCall
from dex_agents._contract.messages import AgentMessage, Json, ModelCallMetadata, TokenUsage
from dex_agents._errors import ContractTypeError

_NO_USAGE = TokenUsage()
_NO_METADATA = ModelCallMetadata()
_COMMON = {"usage": TokenUsage, "metadata": ModelCallMetadata, "took_steering": bool}


@dataclass(frozen=True)
class ToolCallsRequested:
    """Outcome: the turn pauses until each call has its record.

    Attributes:
        calls: At least one call, in the model's order.
        run_state: What the next ``RunModel`` of the turn needs; stored, handed back as it is.
        tool_context: What every tool Step of this response needs, such as session state; stored
            once per response, handed back in :class:`DeferredToolExecution`.
        usage: Tokens and requests of this attempt.
        metadata: What is known of its model calls.
        took_steering: Whether the model has read ``RunModelRequest.steering``; the runner keeps
            these messages in ``run_state``, and among the messages of the completed turn.
    """

    calls: Sequence[RequestedToolCall]
    run_state: Json
    tool_context: Json = None
    usage: TokenUsage = _NO_USAGE
    metadata: ModelCallMetadata = _NO_METADATA
    took_steering: bool = False

    def __post_init__(self) -> None:
        check_items(self, "calls", RequestedToolCall, error=ContractTypeError)
        check_fields(self, _COMMON, ContractTypeError)


@dataclass(frozen=True)
class ContinueTurn:
    """Outcome: this attempt's model call is used up; run the model again with this run state.

    Attributes:
        run_state: See :class:`ToolCallsRequested`.
        usage: Tokens and requests of this attempt.
        metadata: What is known of its model calls.
        took_steering: See :class:`ToolCallsRequested`.
    """

    run_state: Json
    usage: TokenUsage = _NO_USAGE
    metadata: ModelCallMetadata = _NO_METADATA
    took_steering: bool = False

    def __post_init__(self) -> None:
        check_fields(self, _COMMON, ContractTypeError)


@dataclass(frozen=True)
class TurnCompleted:
    """Outcome: the turn is over.

    Attributes:
        messages: Everything the turn adds to the history, its user message included, in order.
        final_text: The answer's text for display, possibly empty.
        output: What the agent returned besides its text, as JSON; ``None`` if nothing.
        usage: Tokens and requests of this attempt.
        metadata: What is known of its model calls.
        took_steering: See :class:`ToolCallsRequested`.
    """

    messages: Sequence[AgentMessage]
    final_text: str = ""
    usage: TokenUsage = _NO_USAGE
    metadata: ModelCallMetadata = _NO_METADATA
    took_steering: bool = False
    output: Json = None

    def __post_init__(self) -> None:
        check_items(self, "messages", AgentMessage, error=ContractTypeError)
        check_fields(self, {"final_text": str, **_COMMON}, ContractTypeError)


RunModelOutcome: TypeAlias = ToolCallsRequested | ContinueTurn | TurnCompleted
"""What a ``RunModel`` attempt gives."""
