"""Tool effects and policies: what a repeated or interrupted call may do to the world."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dex_agents._arguments import shown


class ToolEffect(StrEnum):
    """What one call of a tool does outside the session.

    The effect picks the Step that runs the call, how often it may be attempted and whether a person
    approves it first.
    """

    READ = "read"
    """Changes nothing; may run again after any failure."""
    IDEMPOTENT_WRITE = "idempotent_write"
    """Changes something once per idempotency key; may run again with the same key."""
    NON_IDEMPOTENT_WRITE = "non_idempotent_write"
    """Changes something each time; never runs twice."""
    UNCLASSIFIED = "unclassified"
    """Nobody said; treated like a non-idempotent write."""

    @property
    def maximum_attempts(self) -> int:
        """How many attempts one call may have."""
        return 3 if self in (ToolEffect.READ, ToolEffect.IDEMPOTENT_WRITE) else 1

    @property
    def requires_approval_by_default(self) -> bool:
        """Whether a call waits for a person when its policy does not say."""
        return self in (ToolEffect.NON_IDEMPOTENT_WRITE, ToolEffect.UNCLASSIFIED)


@dataclass(frozen=True)
class ToolPolicy:
    """How the calls of one tool are treated.

    Attributes:
        effect: What a call does outside the session.
        requires_approval: Whether a call waits for approval; ``None`` takes the effect's default.
    """

    effect: ToolEffect
    requires_approval: bool | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.effect, ToolEffect):
            raise TypeError(
                f"ToolPolicy.effect must be a ToolEffect, got {shown(self.effect)}; "
                "write for example ToolPolicy(ToolEffect.READ)"
            )
        if self.requires_approval not in (None, True, False):
            raise TypeError(
                f"ToolPolicy.requires_approval must be True, False or None, "
                f"got {shown(self.requires_approval)}"
            )

    @property
    def needs_approval(self) -> bool:
        """The decision with the effect's default filled in."""
        if self.requires_approval is None:
            return self.effect.requires_approval_by_default
        return self.requires_approval
