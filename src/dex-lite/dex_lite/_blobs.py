"""Blobs that Workers may load: exactly those of the tasks that are open."""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakValueDictionary

import grpc
from dex.dexpb import dex_pb2 as pb

from dex_lite._machine.model import Value
from dex_lite._wire.blobs import blob_id_of, blobs_answer
from dex_lite._wire.errors import ServiceError
from dex_lite._wire.limits import Limits


class Blob:
    """One large value of a Flow. Whoever has a task that names it holds it, and so keeps it loadable."""

    __slots__ = ("__weakref__", "content")

    def __init__(self, content: Value) -> None:
        self.content = content


class Blobs:
    """Blobs by Flow id and blob id. Nothing here outlives the tasks, so nothing has to be removed or stored."""

    def __init__(self) -> None:
        self._open: WeakValueDictionary[tuple[str, str], Blob] = WeakValueDictionary()

    def of_task(self, flow_id: str, contents: Mapping[str, Value]) -> dict[str, Blob]:
        """Blobs to be held as long as the task is open; tasks of a Flow share them."""
        return {
            blob_id: self._open.setdefault((flow_id, blob_id), Blob(content))
            for blob_id, content in contents.items()
        }

    def load(self, request: pb.LoadBlobsRequest, limit: int) -> pb.LoadBlobsResponse:
        """What the entries name, in their order, as much as one answer holds.

        Raises:
            ServiceError: An entry names what no open task of its Flow does.
        """
        found = []
        for entry in request.entries:
            blob_id = blob_id_of(entry)
            blob = self._open.get((entry.flow_id, blob_id))
            if blob is None:
                raise ServiceError(
                    grpc.StatusCode.NOT_FOUND,
                    f"no open task of Flow {entry.flow_id!r} names the blob {blob_id!r}",
                )
            found.append((blob_id, blob.content))
        return blobs_answer(found, limit)


def is_left_out(error: pb.WorkerErrorResponse, blobs: Mapping[str, Blob]) -> bool:
    """Whether a task failed because an answer held only a part of its blobs.

    The SDK puts what it got into its cache, in the order in which it asked, and fails the task at the first blob
    that is missing, before the handler begins. Nobody else knows the ids.
    """
    return any(blob_id in error.detail for blob_id in blobs)


def most_loads(blobs: Mapping[str, Blob], limits: Limits) -> int:
    """Answers after which a Worker that keeps what it loaded has all of the blobs.

    Two answers in a row hold more than one limit together: else the first would have held more.
    """
    return 2 * -(-_size(blobs) // limits.task)


def small_cache_text(blobs: Mapping[str, Blob]) -> str:
    """Why a Worker never got all of the blobs."""
    return (
        f"the Worker's blob cache does not hold the task's {_size(blobs)} bytes of large values; raise the "
        "max_bytes of its BlobCacheConfig to twice as much, or load less"
    )


def _size(blobs: Mapping[str, Blob]) -> int:
    return sum(len(blob.content) for blob in blobs.values())
