"""What may grow, and how far: refused before anything is stored."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import grpc

from dex_lite._machine.commands import Writes
from dex_lite._machine.model import RunState
from dex_lite._wire.errors import ServiceError
from dex_lite._wire.limits import Limits
from dex_lite._wire.options import BadRequest

if TYPE_CHECKING:
    from dex_lite._engine import Engine


def check_room(
    state: RunState, limits: Limits, writes: Writes, *, next_steps: int = 0, outputs: int = 0
) -> None:
    """Refuse what a Flow has no room for: what would grow it beyond its limits, or needs a taken name.

    Raises:
        BadRequest: The text names the limit or the Attribute, and the way out.
    """
    _check_secrets(state, writes)
    if next_steps and len(state.steps) + next_steps > limits.steps:
        raise BadRequest(
            f"a Flow may have at most {limits.steps} open Steps. Let some end first, or use SubFlows"
        )
    if outputs and len(state.outputs) + outputs > limits.outputs:
        raise BadRequest(
            f"a Flow may have at most {limits.outputs} outputs. Gather them in an Attribute, or end "
            "Steps without one"
        )
    _check_attributes(state, limits, writes)
    _check_channels(state, limits, writes)


def _check_secrets(state: RunState, writes: Writes) -> None:
    """A hard-delete Attribute cannot be made of another one, nor the other way round."""
    for key, _ in writes.secrets:
        if key in state.attributes and key not in state.secrets:
            raise BadRequest(
                f"Attribute {key!r} has a value in the history, which cannot be hard-deleted. Delete the "
                "Attribute first, or use another name"
            )
    for key, _ in writes.attributes:
        if key in state.secrets:
            raise BadRequest(
                f"Attribute {key!r} is a hard-delete Attribute. Delete it as one first, or use another name"
            )


def _check_attributes(state: RunState, limits: Limits, writes: Writes) -> None:
    # Counted only near the limit: most writes are to Attributes that are there.
    if len(state.attributes) + len(writes.attributes) + len(writes.secrets) <= limits.attributes:
        return
    after = set(state.attributes)
    for key, value in (*writes.attributes, *writes.secrets):
        if value is None:
            after.discard(key)
        else:
            after.add(key)
    if len(after) > limits.attributes and len(after) > len(state.attributes):
        raise BadRequest(
            f"a Flow may have at most {limits.attributes} Attributes, map instances included. "
            "Delete some, or put several values into one"
        )


def _check_channels(state: RunState, limits: Limits, writes: Writes) -> None:
    if not writes.published:
        return
    counts = Counter(channel for channel, _ in writes.published)
    for channel, count in counts.items():
        if len(state.channels.get(channel, ())) + count > limits.messages:
            raise BadRequest(
                f"Channel {channel!r} may hold at most {limits.messages} messages. Consume or delete "
                "some first"
            )
    if len(state.channels) + len(counts) > limits.channels:
        after = len(state.channels.keys() | counts.keys())
        if after > limits.channels:
            raise BadRequest(
                f"a Flow may have at most {limits.channels} Channels with messages, map instances "
                "included. Consume or delete some first"
            )


def check_open_flows(engine: Engine, new: int = 1) -> None:
    """Refuse Flows that would be too many at a time.

    Raises:
        ServiceError: The text names the limit and the way out.
    """
    limit = engine.options.limits.open_flows
    if len(engine.runs) + new > limit:
        raise ServiceError(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            f"at most {limit} Flows may be open at a time. Let some end first, or start the engine with "
            "a larger Limits(open_flows=...)",
        )
