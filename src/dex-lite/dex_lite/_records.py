"""What the journal stores: rows and writes.

The meaning of the bytes in them belongs to the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec


class RunRow(msgspec.Struct, frozen=True):
    """One run; the row is replaced as a whole."""

    run_id: str
    flow_id: str
    flow_type: str
    status: int
    run_attempt: int
    request_id: str
    first_run_id: str
    start_ms: int
    close_ms: int | None


class StoredRun(msgspec.Struct, frozen=True):
    """What a start needs of one open run."""

    row: RunRow
    snapshot: tuple[int, bytes] | None  # number of the last fact in it, payload
    facts: list[tuple[int, bytes]]  # those after the snapshot, in order
    secrets: Mapping[str, bytes] = {}  # values of hard-delete Attributes


class PutRun(msgspec.Struct, frozen=True):
    row: RunRow


class AddFacts(msgspec.Struct, frozen=True):
    run_id: str
    first_number: int
    payloads: Sequence[bytes]


class PutSnapshot(msgspec.Struct, frozen=True):
    run_id: str
    number: int
    payload: bytes


class PutSecret(msgspec.Struct, frozen=True):
    """The value of a hard-delete Attribute; ``None`` removes it, and what it was."""

    run_id: str
    attribute: str
    value: bytes | None


class DropSecrets(msgspec.Struct, frozen=True):
    """Remove the values of all hard-delete Attributes of a run."""

    run_id: str


class DropRun(msgspec.Struct, frozen=True):
    """Delete a closed run with all its facts."""

    run_id: str


class PutIndexTypes(msgspec.Struct, frozen=True):
    types: Mapping[str, int]


class IndexesFilled(msgspec.Struct, frozen=True):
    """All runs are in all indexes: those that were there before an index was, too."""


class PutIndexed(msgspec.Struct, frozen=True):
    """An Attribute as it is found by searches; replaces what was there of this Attribute."""

    run_id: str
    attribute: str
    name: str
    value: bytes
    terms: Sequence[str | int | float]


class DropIndexed(msgspec.Struct, frozen=True):
    run_id: str
    attribute: str


class PutStreamGroup(msgspec.Struct, frozen=True):
    """A Stream of a Flow type, and the capacity it was last given."""

    group: int
    flow_type: str
    stream_name: str
    capacity: int


class AddStreamMessage(msgspec.Struct, frozen=True):
    sequence: int
    group: int
    created_ms: int
    flow_id: str
    source: str
    value: bytes


class TrimStream(msgspec.Struct, frozen=True):
    sequences: Sequence[int]


Write = (
    PutRun
    | AddFacts
    | DropRun
    | DropSecrets
    | PutSecret
    | PutSnapshot
    | PutIndexTypes
    | IndexesFilled
    | PutIndexed
    | DropIndexed
    | PutStreamGroup
    | AddStreamMessage
    | TrimStream
)
