"""A ``StepCheckpoint`` without an engine."""

from __future__ import annotations

from dex_agents._contract import Json
from support.adk_oracle import stored


class Checkpoint:
    """What the Step keeps, as JSON."""

    def __init__(self, limit: int = 10_000) -> None:
        self.last: Json = None
        self._limit = limit

    async def keep(self, value: Json) -> None:
        """See ``StepCheckpoint``."""
        if len(repr(value)) > self._limit:
            raise ValueError("too large")
        self.last = stored(value)
