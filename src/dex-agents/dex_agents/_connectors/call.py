"""One attempt of one connector call: its identity and its fence."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from dex_agents import _failpoints
from dex_agents._arguments import check_sendable
from dex_agents._connectors.operation import ConnectionReference
from dex_agents._contract import Json, StepCheckpoint

_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://superdurable.dev/dex-connectors/call-id/v1")
_FENCE = "connector_fence"


def connector_call_id(
    flow_id: str, step_execution_id: str, connector_id: str, operation_id: str
) -> str:
    """The Call ID of the one connector call of a Step execution.

    Equal for all attempts, in whatever process; another Step execution has another one.

    Args:
        flow_id: The session id.
        step_execution_id: The tool Step, the same for all of its attempts.
        connector_id, operation_id: What is called.

    Raises:
        TypeError, ValueError: One is no text, or holds NUL or a lone surrogate.
    """
    for name, value in (
        ("flow_id", flow_id),
        ("step_execution_id", step_execution_id),
        ("connector_id", connector_id),
        ("operation_id", operation_id),
    ):
        check_sendable(name, value)
    fields = (flow_id, step_execution_id, connector_id, operation_id)
    return str(uuid.uuid5(_NAMESPACE, "".join(f"{len(f.encode())}:{f}" for f in fields)))


@dataclass
class ConnectorCall:
    """What an operation gets for one attempt.

    Attributes:
        call_id: Identity of the call, for the provider to know a repeat by.
        connection: Which connection to use.
        arguments: Arguments that fit the operation's schema.
        attempt: 1 for the first attempt.
        may_have_left: Whether an attempt before this one may have reached the provider. False
            proves nothing when an attempt's machine or engine died at once.
    """

    call_id: str
    connection: ConnectionReference
    arguments: Mapping[str, Json]
    attempt: int
    may_have_left: bool
    _checkpoint: StepCheckpoint = field(repr=False)
    _is_dispatched: bool = False

    @property
    def is_dispatched(self) -> bool:
        """Whether this attempt may have reached the provider."""
        return self._is_dispatched

    async def dispatch(self) -> None:
        """Leave the fence; awaited right before the request leaves this process.

        When it returns, the marker is on its way to the engine and outlives this process, so the
        next attempt knows that the request may have been sent.
        """
        self._is_dispatched = True
        await self._checkpoint.keep({_FENCE: self.call_id, "attempt": self.attempt})
        _failpoints.reach("connector.dispatched")


def has_fence(last: Json, call_id: str) -> bool:
    """Whether a checkpoint says that this call may have left."""
    return isinstance(last, dict) and last.get(_FENCE) == call_id
