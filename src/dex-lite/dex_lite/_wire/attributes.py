"""Attribute writes of clients and handlers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from dex.dexpb import dex_pb2 as pb

from dex_lite._machine.model import IndexUse, Value
from dex_lite._search._fields import IndexTypeError, check_type
from dex_lite._search._terms import TYPE_NAMES, terms
from dex_lite._wire.limits import Limits, name_fault
from dex_lite._wire.options import NULL, BadRequest, encoded_value, unique


class AttributeWrites(NamedTuple):
    """Values by key, ``None`` deletes; the indexes that some of them name; and hard-delete Attributes."""

    values: tuple[tuple[str, Value | None], ...]
    indexes: tuple[IndexUse, ...]
    secrets: tuple[tuple[str, Value | None], ...]


def attribute_writes(
    writes: Iterable[pb.AttributeWrite], limits: Limits, index_types: Mapping[str, int]
) -> AttributeWrites:
    """Check writes of one handler or client; null deletes.

    Raises:
        BadRequest: One of them breaks a rule, or its value does not fit its index.
    """
    values: list[tuple[str, Value | None]] = []
    indexes: list[IndexUse] = []
    secrets: list[tuple[str, Value | None]] = []
    for write in writes:
        if fault := name_fault("Attribute key", write.key, limits, forbidden=""):
            raise BadRequest(fault)
        if not write.HasField("value"):
            raise BadRequest(f"Attribute {write.key!r} has no value")
        value = encoded_value(f"Attribute {write.key!r}", write.value, limits)
        if write.is_hard_delete_on_null:
            _check_secret(write)
            secrets.append((write.key, None if value == NULL else value))
            continue
        use = _use(write, limits, index_types)
        if use is not None:
            indexes.append(use)
        index_type = index_types.get(write.key) if use is None else use.type
        if index_type is not None and value != NULL:
            _check_fits(write, index_type, limits)
        values.append((write.key, None if value == NULL else value))
    unique("Attribute keys", [key for key, _ in (*values, *secrets)])
    return AttributeWrites(tuple(values), tuple(indexes), tuple(secrets))


def _check_secret(write: pb.AttributeWrite) -> None:
    named = f"hard-delete Attribute {write.key!r}"
    if write.value.WhichOneof("kind") not in ("string_value", "obj_value", "null_value"):
        raise BadRequest(f"{named} must be text or an object")
    if write.index_config.enable:
        raise BadRequest(f"{named} must not be indexed: an index would keep its value")
    if write.HasField("sync_config"):
        raise BadRequest(f"{named} must not go to an Attribute Store, which would keep its value")


def _use(
    write: pb.AttributeWrite, limits: Limits, index_types: Mapping[str, int]
) -> IndexUse | None:
    if not write.index_config.enable:
        return None
    name = write.index_config.index_key or write.key
    if fault := name_fault("index key", name, limits, forbidden=""):
        raise BadRequest(fault)
    try:
        check_type(index_types, name, write.index_config.type)
    except IndexTypeError as error:
        raise BadRequest(str(error)) from None
    return IndexUse(write.key, name, write.index_config.type)


def _check_fits(write: pb.AttributeWrite, index_type: int, limits: Limits) -> None:
    size = write.value.ByteSize()
    if size > limits.indexed_value:
        raise BadRequest(
            f"indexed Attribute {write.key!r} has {size} bytes, at most {limits.indexed_value} are allowed. "
            "Index a short Attribute beside it"
        )
    if terms(index_type, write.value) is None:
        raise BadRequest(
            f"the value of Attribute {write.key!r} does not fit its index of type "
            f"{TYPE_NAMES[index_type]}"
        )
