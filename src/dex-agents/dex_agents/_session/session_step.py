"""What all Steps of a session have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dex import AsyncContext, Step

from dex_agents._tracing import SpanPlace

if TYPE_CHECKING:
    from dex_agents._session.flow import AgentSessionFlow


class SessionStep(Step[bytes]):
    """A Step of the session Flow; its input is an encoded JSON value."""

    def __init__(self, flow: AgentSessionFlow) -> None:
        self._flow = flow


def attempt_place(context: AsyncContext, turn_id: str) -> SpanPlace:
    """Where the span of this attempt of a Step belongs."""
    return SpanPlace(context.flow_id, turn_id, context.step_execution_id, context.attempt)
