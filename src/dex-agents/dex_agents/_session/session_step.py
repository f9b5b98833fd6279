"""What all Steps of a session have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dex import Step

if TYPE_CHECKING:
    from dex_agents._session.flow import AgentSessionFlow


class SessionStep(Step[bytes]):
    """A Step of the session Flow; its input is an encoded JSON value."""

    def __init__(self, flow: AgentSessionFlow) -> None:
        self._flow = flow
