"""Checks of what a runner returned, before anything of it is stored."""

from __future__ import annotations

from collections.abc import Sequence

from dex_agents._contract import (
    ContinueTurn,
    Json,
    RequestedToolCall,
    RunModelOutcome,
    ToolCallsRequested,
    TurnCompleted,
)
from dex_agents._errors import AgentTurnError
from dex_agents._session.encoding import EncodingError, encode

MAX_COMMIT_BYTES = 3_500_000
"""What one ``RunModel`` may store. Dex carries 4 MiB between Worker and engine, names included."""
MAX_CALLS = 1_000
_LARGEST_INT = 2**31 - 1


def check_outcome(outcome: RunModelOutcome) -> None:
    """Refuse an outcome that the session cannot carry out. Its types are right, as it was made.

    Raises:
        AgentTurnError: What is wrong with it.
    """
    if isinstance(outcome, TurnCompleted):
        if not outcome.messages:
            raise _bad("a completed turn has no messages, not even its user message")
    elif isinstance(outcome, ToolCallsRequested):
        if not 0 < len(outcome.calls) <= MAX_CALLS:
            raise _bad(f"{len(outcome.calls)} tool calls were requested, 1 to {MAX_CALLS} can be")
        for call in outcome.calls:
            _check_call(call)
    elif not isinstance(outcome, ContinueTurn):
        raise _bad(f"it is no outcome but {type(outcome).__name__}")


def _check_call(call: RequestedToolCall) -> None:
    name = call.tool_name
    for field in ("timeout_s", "maximum_attempts", "retry_interval_s", "maximum_retry_interval_s"):
        value: int | None = getattr(call, field)
        if value is not None and not 1 <= value <= _LARGEST_INT:
            raise _bad(f"{field} of a call of {name} is {value!r}, not a whole number from 1 on")
    if call.effect.maximum_attempts == 1 and (call.maximum_attempts or 1) > 1:
        raise _bad(
            f"maximum_attempts of a call of {name} is {call.maximum_attempts}, but its effect "
            f"{call.effect} never runs twice"
        )


def encoded(what: str, value: Json) -> bytes:
    """The value as stored.

    Raises:
        AgentTurnError: It is no JSON value; the text names ``what``.
    """
    try:
        return encode(value)
    except EncodingError as error:
        raise _bad(f"{what} cannot be stored: {error}") from error


def check_size(what: str, parts: Sequence[bytes]) -> None:
    """Refuse more than one commit can carry.

    Raises:
        AgentTurnError: The size, and the limit.
    """
    size = sum(map(len, parts))
    if size > MAX_COMMIT_BYTES:
        raise AgentTurnError(
            f"{what} take {size} bytes, one commit carries at most {MAX_COMMIT_BYTES}; "
            "let tools return less, or keep large data outside the session"
        )


def _bad(why: str) -> AgentTurnError:
    return AgentTurnError(f"the agent framework's adapter gave an invalid outcome: {why}")
