"""What a runner may have besides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from dex_agents._contract.messages import AgentMessage, HistorySummary, Json
from dex_agents._media.reference import ImageReference


@dataclass(frozen=True)
class CompactionRequest:
    """What one summary call gets.

    Attributes:
        session_id: The session.
        step_execution_id: The Step that asks, the same for all of its attempts.
        summary: The summary of the turns before ``messages``, or ``None``.
        messages: The turns to summarize, oldest first; not to be changed.
    """

    session_id: str
    step_execution_id: str
    summary: HistorySummary | None
    messages: Sequence[AgentMessage]


@runtime_checkable
class HistoryCompactor(Protocol):
    """What a runner has besides if its sessions can be compacted.

    One that compacts in a way of its own may say so in an attribute ``refuses_compaction``, a text: a
    Flow with a policy is then refused with it.
    """

    def estimated_overhead_tokens(self) -> int:
        """Instructions and tool definitions that go with every model call, as far as it sees them."""

    def blocks_compaction(self, messages: Sequence[AgentMessage]) -> bool:
        """Whether something is open that would be lost with these messages."""

    async def summarize(self, request: CompactionRequest) -> HistorySummary:
        """Make one model call that sums up the given turns, and the summary before them.

        Raises:
            Exception: It failed; it may be tried again, and the turn goes on without it.
        """


@runtime_checkable
class StateMessageBuilder(Protocol):
    """What a runner has besides if sessions can begin with a state."""

    def build_state_message(self, state: Mapping[str, Json]) -> AgentMessage:
        """The item that stands before all others and gives the session its first state.

        Raises:
            ValueError: No session can begin with this; the text names the key.
        """


@runtime_checkable
class TurnRemover(Protocol):
    """What a runner has besides if more than the history must follow a rewind."""

    def note_removed(self, note: Json, messages: Sequence[AgentMessage]) -> Json:
        """What later turns must know of turns that a rewind removes; runs in the client.

        Args:
            note: What it answered for turns that were removed earlier, or ``None``.
            messages: Some of the messages that are removed, oldest first.

        Returns:
            A JSON value for all of them, or ``None``; at most 256 KiB.
        """


@runtime_checkable
class ImageMessageBuilder(Protocol):
    """What a runner has besides if its sessions take images. Its absence refuses them."""

    def build_user_message_with_images(
        self, text: str, images: Sequence[ImageReference]
    ) -> AgentMessage:
        """A message of the user: the text, then the images in order."""
