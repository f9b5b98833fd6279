"""What a session stores: its messages, and what its model calls took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from dex_agents._arguments import check_fields, check_items
from dex_agents._errors import ContractTypeError
from dex_agents._media.reference import ImageReference

Json: TypeAlias = Any
"""A JSON value: None, bool, int, float, str, list of Json, dict of str to Json."""


_TEXT_OR_NONE = (str, type(None))


class MessageRole(StrEnum):
    """Whom a stored message shows as."""

    USER = "user"
    """Text that a user sent, or that the session says in their place, such as a note."""
    ASSISTANT = "assistant"
    """What an agent said, or the calls that it asked for."""
    TOOL = "tool"
    """What tool calls gave."""


_MESSAGE: dict[str, type | tuple[type, ...]] = {
    "role": MessageRole,
    "text": str,
    "tool_name": _TEXT_OR_NONE,
    "tool_call_id": _TEXT_OR_NONE,
    "turn_id": str,
    "sequence": int,
    "origin_session_id": str,
    "is_note": bool,
}


@dataclass(frozen=True)
class AgentMessage:
    """One stored item of a session's history.

    Attributes:
        role: Whom the message shows as.
        framework_item: The framework's own item as JSON; the only input from which history is
            rebuilt.
        text: Display text, empty when there is none.
        tool_name: Set only if the item holds exactly one call or one response.
        tool_call_id: Set with ``tool_name``.
        turn_id: The turn that stored it; empty until the Flow stores the message.
        sequence: Position in the session from 0; -1 until stored.
        images: The images of the item, in order.
        origin_session_id: The session whose turn it was, if it came here with a fork; else empty.
        is_note: Whether the session itself wrote it, in the role of the user so that the next model
            call reads it: how a turn without an answer ended, and what its calls did.
    """

    role: MessageRole
    framework_item: Json
    text: str = ""
    tool_name: str | None = None
    tool_call_id: str | None = None
    turn_id: str = ""
    sequence: int = -1
    images: Sequence[ImageReference] = ()
    origin_session_id: str = ""
    is_note: bool = False

    def __post_init__(self) -> None:
        check_fields(self, _MESSAGE, ContractTypeError)
        check_items(self, "images", ImageReference, "put_image gives them", ContractTypeError)


_USAGE = dict.fromkeys(("input_tokens", "output_tokens", "model_calls"), int)


@dataclass(frozen=True)
class TokenUsage:
    """Tokens and requests of model calls. Counts add up with ``+``.

    Attributes:
        input_tokens: Tokens that were sent.
        output_tokens: Tokens that came back, thoughts included.
        model_calls: Requests that went out.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    model_calls: int = 0

    def __post_init__(self) -> None:
        check_fields(self, _USAGE, ContractTypeError)

    def __add__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.model_calls + other.model_calls,
        )


_METADATA = dict.fromkeys(
    ("request_model", "response_model", "provider_name", "response_id"), _TEXT_OR_NONE
)


@dataclass(frozen=True)
class ModelCallMetadata:
    """What a ``RunModel`` attempt learned about its model calls, for tracing and the session graph.

    ``None`` means not known.

    Attributes:
        request_model: Name of the model that was asked for.
        response_model: Name of the model that answered.
        finish_reasons: Why it stopped, such as ``"stop"``.
        provider_name: Who runs the model, as OpenTelemetry's ``gen_ai.provider.name``.
        response_id: The provider's id of the answer.
        agent_names: The agents whose model was asked, in that order; more than one if they run side
            by side.
    """

    request_model: str | None = None
    response_model: str | None = None
    finish_reasons: tuple[str, ...] = ()
    provider_name: str | None = None
    response_id: str | None = None
    agent_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self, _METADATA, ContractTypeError)
        check_items(self, "finish_reasons", str, error=ContractTypeError)
        check_items(self, "agent_names", str, error=ContractTypeError)


@dataclass(frozen=True)
class HistorySummary:
    """What stands for a session's older turns in the model's input.

    Attributes:
        text: The summary, in whatever form the runner needs to go on from it.
        usage: Tokens and requests of the summary call.
        metadata: What is known about the summary call, for tracing.
        read_bytes: How many bytes of the text the model reads; ``None``: all of it.
    """

    text: str
    usage: TokenUsage = TokenUsage()
    metadata: ModelCallMetadata = ModelCallMetadata()
    read_bytes: int | None = None

    def __post_init__(self) -> None:
        fields: dict[str, type | tuple[type, ...]] = {
            "text": str,
            "usage": TokenUsage,
            "metadata": ModelCallMetadata,
            "read_bytes": (int, type(None)),
        }
        check_fields(self, fields, ContractTypeError)
