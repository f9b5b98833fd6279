"""What a connector offers: operations, and how one of them can end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from dex_agents._arguments import check_fields, check_name
from dex_agents._contract import Json
from dex_agents._media.reference import ImageReference

if TYPE_CHECKING:
    from dex_agents._connectors.call import ConnectorCall


class OperationKind(StrEnum):
    """What an operation does to the provider."""

    QUERY = "query"
    """Reads."""
    MUTATION = "mutation"
    """Changes something."""


class RetrySafety(StrEnum):
    """What a mutation may do after it may have left."""

    SAFE = "safe"
    """Again, with the same Call ID, by which the provider knows it."""
    UNCERTAIN = "uncertain"
    """Nothing: nobody can say whether it took effect."""


@dataclass(frozen=True)
class ConnectionReference:
    """The name of a configured connection; never a credential.

    Attributes:
        connector_id: The connector it belongs to.
        name: Which of its connections.
    """

    connector_id: str
    name: str

    def __post_init__(self) -> None:
        check_name("connector_id", self.connector_id)
        check_name("name", self.name)


class ConnectorOutcome(StrEnum):
    """How one attempt of an operation ended."""

    COMPLETED = "completed"
    """There is a value."""
    REJECTED = "rejected"
    """The provider refused; a repeat would give the same."""
    RETRY = "retry"
    """It may work later, and a repeat does no harm."""
    UNCERTAIN = "uncertain"
    """The request left, and nobody can say what it did."""
    DEFECT = "defect"
    """The connector itself is at fault."""


@dataclass(frozen=True)
class ConnectorResult:
    """The result of one attempt.

    Attributes:
        outcome: How it ended.
        value: JSON value of a completed one.
        message: Why it did not complete; the model reads it, so no credential is in it.
        retry_after_s: Seconds the provider asks to wait, for ``RETRY``.
        images: Images of a completed one, uploaded already.
    """

    outcome: ConnectorOutcome
    value: Json = None
    message: str = ""
    retry_after_s: float | None = None
    images: Sequence[ImageReference] = ()

    def __post_init__(self) -> None:
        check_fields(
            self,
            {
                "outcome": ConnectorOutcome,
                "message": str,
                "retry_after_s": (int, float, type(None)),
            },
        )
        if self.retry_after_s is not None and not 0 <= self.retry_after_s < math.inf:
            raise ValueError(
                "ConnectorResult.retry_after_s must be seconds from 0 on, got "
                f"{self.retry_after_s}; None leaves the delay to the session"
            )


@runtime_checkable
class ConnectorOperation(Protocol):
    """One operation of a connector, bound to a client that holds its credentials."""

    @property
    def connector_id(self) -> str:
        """Stable id of the connector; part of every Call ID."""

    @property
    def operation_id(self) -> str:
        """Stable id of the operation within it; part of every Call ID."""

    @property
    def kind(self) -> OperationKind:
        """Query or mutation."""

    @property
    def retry(self) -> RetrySafety:
        """What a mutation may do after it may have left; without meaning for a query."""

    @property
    def is_exposed(self) -> bool:
        """Whether somebody has reviewed the operation for agents."""

    @property
    def description(self) -> str:
        """What it does, for the model."""

    @property
    def input_schema(self) -> Mapping[str, Json]:
        """JSON Schema of its arguments, an object's."""

    @property
    def timeout(self) -> timedelta | None:
        """Longest time of one attempt, whole seconds; ``None`` takes the session's setting."""

    @property
    def maximum_attempts(self) -> int | None:
        """Attempts of a query or safe mutation; ``None`` takes the session's number."""

    async def execute(self, call: ConnectorCall) -> ConnectorResult:
        """Make one attempt: awaits ``call.dispatch()``, then sends the request.

        Raises:
            Exception: Counts as a request that may have left if ``call.dispatch()`` was awaited,
                else as one that did not.
        """
