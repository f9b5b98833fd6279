"""Names and sizes that are refused before anything is stored."""

from __future__ import annotations

from dataclasses import dataclass, fields

from dex.dexpb import dex_pb2 as pb


@dataclass(frozen=True)
class Limits:
    """What a client or Worker can make grow. Sizes are bytes of the encoded thing.

    Attributes:
        request: Largest request; the gRPC server refuses more.
        task: Largest task or reply: the SDK receives at most 4 MiB.
        task_blobs: Most bytes of values that a task only names, for the Worker to load by themselves.
        value: Largest single value.
        indexed_value: Largest value of an indexed Attribute.
        name: Longest name of a Flow, Step, Channel, Attribute or request.
        reason: Longest reason of a client's stop or time travel.
        config: Largest config of a Flow.
        steps: Most open Step executions of a Flow.
        outputs: Most outputs of a Flow.
        attributes: Most Attributes of a Flow, map instances included.
        channels: Most Channels of a Flow that hold messages, map instances included.
        messages: Most pending messages of a Channel.
        conditions: Most conditions and combinations of one wait.
        indexes: Most Attribute indexes.
        streams: Most Streams, by Flow type and name.
        stream_capacity: Largest capacity of a Stream.
        open_flows: Most open Flows.
        calls: Most calls of clients at a time, those that wait included.
        worker_streams: Most streams of Workers.
        streams_per_worker: Most streams of one Worker.

    Raises:
        TypeError, ValueError: A limit is no int from 1 on.
    """

    request: int = 16 << 20
    task: int = (4 << 20) - (64 << 10)
    task_blobs: int = 32 << 20
    value: int = 3_670_016
    indexed_value: int = 32 << 10
    name: int = 255
    reason: int = 16 << 10
    config: int = 64 << 10
    steps: int = 10_000
    outputs: int = 10_000
    attributes: int = 100_000
    channels: int = 10_000
    messages: int = 10_000
    conditions: int = 1_000
    indexes: int = 1_000
    streams: int = 10_000
    stream_capacity: int = 1 << 30
    open_flows: int = 1_000_000
    calls: int = 20_000
    worker_streams: int = 4_096
    streams_per_worker: int = 256

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{limit.name} must be an int, got {value!r:.80}")
            if value < 1:
                raise ValueError(f"{limit.name} must be at least 1, got {value}")


def name_fault(kind: str, name: str, limits: Limits, *, forbidden: str = "/$:") -> str | None:
    """What is wrong with a name, or ``None``."""
    if not name or not name.strip():
        return f"{kind} must not be blank"
    if len(name) > limits.name:
        return f"{kind} has {len(name)} characters, at most {limits.name} are allowed. Shorten it"
    bad = sorted({character for character in name if character in forbidden})
    if bad:
        return f"{kind} {name!r} must not contain {' or '.join(map(repr, bad))}"
    return None


def request_id_fault(request_id: str, limits: Limits) -> str | None:
    """What is wrong with a request id, or ``None``; a call may come without one."""
    return name_fault("request id", request_id, limits, forbidden="") if request_id else None


def reason_fault(reason: str, limits: Limits) -> str | None:
    """What is wrong with a client's reason, or ``None``."""
    size = len(reason.encode())
    if size > limits.reason:
        return f"the reason has {size} bytes, at most {limits.reason} are allowed. Say it shorter"
    return None


def config_fault(config: pb.FlowConfig, limits: Limits) -> str | None:
    """What is wrong with the size of a Flow config, or ``None``."""
    size = config.ByteSize()
    if size > limits.config:
        return f"the Flow config has {size} bytes, at most {limits.config} are allowed. Shorten it"
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
        return (
            f"{what} has {size} bytes, at most {limits.value} are allowed. Store it elsewhere and keep "
            "a reference"
        )
    return None
