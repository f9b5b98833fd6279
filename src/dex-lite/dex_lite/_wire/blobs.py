"""Large values of a task as blobs: the task names them, the Worker asks for their content in a call of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from dex.dexpb import dex_pb2 as pb

from dex_lite._machine.model import Value
from dex_lite._wire.limits import Limits

SMALLEST = 64 << 10
"""Smaller values stay in the task: a name, a look-up and a cached file each cost more than they save."""

# A field of the kind that carries the id, by the kind of the value.
_ID_FIELDS = {
    "string_value": "internal_blob_id_for_string_value",
    "obj_value": "internal_blob_id_for_obj_value",
}
_ENTRY_BYTES = 96  # more than what a blob's id and lengths add to an answer


class TaskTooLarge(Exception):
    """No Worker can take the task; the text says why and what to do."""


class EncodedTask(NamedTuple):
    """What goes to the Worker, and what it may ask for, by blob id."""

    data: bytes
    blobs: Mapping[str, Value]


def encoded_task(task: pb.PollWorkerTask, limits: Limits, inline: Collection[str]) -> EncodedTask:
    """The task in its encoding; large values go as blobs if it would not fit otherwise.

    The values of the Attributes ``inline`` never do: a Worker keeps blobs in files.

    Raises:
        TaskTooLarge: It does not fit even so.
    """
    size = task.ByteSize()
    blobs: dict[str, Value] = {}
    if limits.task < size <= limits.task + limits.task_blobs:
        blobs = _put_aside(task, limits.task, size - limits.task, inline)
    data = task.SerializeToString()
    if len(data) > limits.task or sum(map(len, blobs.values())) > limits.task_blobs:
        raise TaskTooLarge(
            f"the task has {size} bytes, a Worker takes at most {limits.task} and {limits.task_blobs} in "
            f"blobs, which only values from {SMALLEST} bytes on can be; load less, or store less"
        )
    return EncodedTask(data, blobs)


def _put_aside(
    task: pb.PollWorkerTask, limit: int, excess: int, inline: Collection[str]
) -> dict[str, Value]:
    """Replace values by ids until ``excess`` bytes are saved or no value is left.

    Largest first, those before the others that one answer can hold together: then even a Worker without
    a cache can load the task.
    """
    large = [value for value in _values(task, inline) if _may_be_blob(value, limit)]
    large.sort(key=lambda value: -value.ByteSize())
    in_one_answer, others, room = [], [], limit
    for value in large:
        size = value.ByteSize() + _ENTRY_BYTES
        if size <= room:
            room -= size
            in_one_answer.append(value)
        else:
            others.append(value)
    blobs: dict[str, Value] = {}
    for value in (*in_one_answer, *others):
        if excess <= 0:
            break
        content = value.SerializeToString()
        blob_id = hashlib.sha256(content).hexdigest()
        blobs[blob_id] = content
        setattr(value, _ID_FIELDS[value.WhichOneof("kind") or ""], blob_id)
        excess -= len(content) - value.ByteSize()
    return blobs


def _may_be_blob(value: pb.Value, limit: int) -> bool:
    return (
        value.WhichOneof("kind") in _ID_FIELDS
        and SMALLEST <= value.ByteSize() <= limit - _ENTRY_BYTES
    )


def _values(task: pb.PollWorkerTask, inline: Collection[str]) -> Iterator[pb.Value]:
    """The values of a task that the SDK looks up if they are blobs."""
    request = getattr(task, task.WhichOneof("request"))
    if isinstance(request, pb.InvokeWorkerRPCRequest):
        yield request.input
    else:
        if request.HasField("step_input"):
            yield request.step_input
        if request.context.HasField("last_heartbeat_value"):
            yield request.context.last_heartbeat_value
    yield from (entry.value for entry in request.attributes if entry.key not in inline)
    for loaded in request.loaded_channel_messages.values():
        yield from (message.value for message in loaded.messages)
    if isinstance(request, pb.InvokeExecuteMethodRequest):
        yield from (entry.value for entry in request.step_exe_locals)
        for channel in request.condition_results.channel_results:
            yield from channel.values
        for flow in request.condition_results.sub_flow_results:
            yield from (result.completed_step_output for result in flow.results)


def blob_id_of(entry: pb.LoadBlobRequestEntry) -> str:
    """The id that an entry asks for; empty if it asks for none."""
    kind = entry.blob_value.WhichOneof("kind")
    return getattr(entry.blob_value, kind) if kind in _ID_FIELDS.values() else ""


def blobs_answer(found: Iterable[tuple[str, Value]], limit: int) -> pb.LoadBlobsResponse:
    """As many of the blobs, in their order, as a client can receive at a time."""
    response = pb.LoadBlobsResponse()
    room = limit
    for blob_id, content in found:
        if blob_id in response.values:
            continue
        room -= len(content) + _ENTRY_BYTES
        if room < 0:
            break
        response.values[blob_id].ParseFromString(content)
    return response
