"""Names and sizes that are refused before anything is stored."""

from __future__ import annotations

from dataclasses import dataclass

from dex.dexpb import dex_pb2 as pb


@dataclass(frozen=True)
class Limits:
    """What a client or Worker can make grow. Sizes are bytes of the encoded thing.

    Attributes:
        request: Largest request; the gRPC server refuses more.
        task: Largest task or reply: the SDK receives at most 4 MiB.
        value: Largest single value.
        indexed_value: Largest value of an indexed Attribute.
        name: Longest name of a Flow, Step, Channel, Attribute or request.
        steps: Most open Step executions of a Flow.
        messages: Most pending messages of a Channel.
    """

    request: int = 16 << 20
    task: int = (4 << 20) - (64 << 10)
    value: int = 3_670_016
    indexed_value: int = 32 << 10
    name: int = 255
    steps: int = 10_000
    messages: int = 10_000


def name_fault(kind: str, name: str, limits: Limits, *, forbidden: str = "/$:") -> str | None:
    """What is wrong with a name, or ``None``."""
    if not name or not name.strip():
        return f"{kind} must not be blank"
    if len(name) > limits.name:
        return f"{kind} has {len(name)} characters, at most {limits.name} are allowed"
    bad = sorted({character for character in name if character in forbidden})
    if bad:
        return f"{kind} {name!r} must not contain {' or '.join(map(repr, bad))}"
    return None


def value_fault(what: str, value: pb.Value, limits: Limits) -> str | None:
    """What is wrong with a value that comes from outside, or ``None``."""
    kind = value.WhichOneof("kind")
    if kind is None:
        return f"{what} has no kind"
    if kind.startswith("internal_blob_id"):
        return f"{what} refers to a blob, which only the server may do"
    if kind == "obj_value" and value.obj_value.encoding not in ("json", "raw"):
        return f"{what} has the unknown encoding {value.obj_value.encoding!r}"
    if kind == "double_value" and not -float("inf") < value.double_value < float("inf"):
        return f"{what} is not a finite number"
    size = value.ByteSize()
    if size > limits.value:
        return f"{what} has {size} bytes, at most {limits.value} are allowed"
    return None
